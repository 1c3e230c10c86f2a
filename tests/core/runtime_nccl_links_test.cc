// SPDX-License-Identifier: Apache-2.0
// Runtime with an NCCL whose communicators get ready and whose links do not
// come: it makes them at the first calls.
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "nccl_jobs.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

// Steps of right sums until rank 0 has said why they are staged, and one more.
// Returns that.
std::string UntilStaged(
    int size, const GpuJob& job,
    const std::function<void(int, Runtime*, TestGpu*)>& prepare = Nothing) {
  const Lines lines;
  const auto reason = [&] {
    const std::vector<std::string> found = lines.With(kStaysStaged);
    EXPECT_TRUE(found.size() <= 1);
    return found.empty() ? std::string() : found[0];
  };
  RunOnGpus(
      size,
      [&](int rank, Runtime* runtime, TestGpu* gpu) {
        prepare(rank, runtime, gpu);
        for (bool is_known = false; !is_known;) {
          const float mine = reason().empty() ? 0.0f : 1.0f;
          PendingPtr all = Start(
              runtime, {"known", Verb::kAllreduce, ReduceOp::kMin}, {{mine}});
          ASSERT_EQ(all->Wait().message(), "");
          is_known = all->out[0][0] > 0;
          GpuCall sum(gpu, runtime, "sum", Filled(10, 1.0f + rank));
          ASSERT_EQ(sum.Wait().message(), "");
          EXPECT_TRUE(sum.Values() == Filled(10, size * (size + 1) / 2.0f));
        }
      },
      Nccl, job);
  EXPECT_EQ(FakeNccl::completed(), 0);
  return reason();
}

void ExpectWords(const std::string& text, const std::string& words) {
  EXPECT_TRUE(Contains(text, words));
  if (!Contains(text, words)) std::printf("%s\n", text.c_str());
}

// They have all the time that they want until they are connected.
GpuJob WithShortTrial(bool in_stream_order = false) {
  GpuJob job;
  job.change_owner = [](LaneOwner* owner) { owner->stall_shutdown_s = 0.1; };
  job.options.async_completion = in_stream_order;
  // The trial is no batch of theirs.
  job.options.batches_in_flight = 1;
  return job;
}

TEST(links_that_do_not_come) {
  for (const bool in_stream_order : {false, true}) {
    FakeNccl::Reset();
    FakeNccl::HoldLinks();
    ExpectWords(UntilStaged(3, WithShortTrial(in_stream_order)),
                "rank 0 says: NCCL did not move its first numbers within 0 s, "
                "half of HVD_STALL_SHUTDOWN_S; NCCL_DEBUG=INFO shows what it "
                "waits for");
  }
}

// The others only know that it does not come.
TEST(links_that_fail_on_one_rank) {
  FakeNccl::Reset();
  FakeNccl::FailLinks(2);
  ExpectWords(UntilStaged(3, WithShortTrial()),
              "rank 2 says: NCCL failed: unhandled system error (2)");
}

TEST(a_first_launch_that_fails) {
  FakeNccl::Reset();
  FakeNccl::FailLaunch(1);
  ExpectWords(UntilStaged(2, WithShortTrial()),
              "rank 1 says: NCCL did not start a batch: unhandled system error "
              "(2)");
}

// Its GPU has the trial, and does not end it.
TEST(a_first_kernel_that_does_not_end) {
  FakeNccl::Reset();
  FakeNccl::HoldKernels(1);
  ExpectWords(UntilStaged(2, WithShortTrial()),
              "NCCL did not move its first numbers within 0 s");
}

TEST(a_gpu_without_memory_for_the_trial) {
  FakeNccl::Reset();
  ExpectWords(UntilStaged(2, GpuJob(),
                          [](int rank, Runtime*, TestGpu* gpu) {
                            if (rank == 1) gpu->RunOutOfBuffers();
                          }),
              "rank 1 says: this rank's GPU has no memory for 16 bytes");
}

// What is wanted first later on, such as a link for an alltoall.
TEST(a_link_that_does_not_come_later) {
  FakeNccl::Reset();
  GpuJob job;
  job.connect_limit = milliseconds(1000);
  RunOnGpus(
      2,
      [](int rank, Runtime* runtime, TestGpu* gpu) {
        ASSERT_TRUE(BecomesDirect(rank, 2, runtime, gpu));
        FakeNccl::HoldLinks();
        GpuCall sum(gpu, runtime, "sum", Filled(100, 1.0f));
        const Status status = sum.Wait();
        EXPECT_FALSE(status.ok());
        if (status.code() == StatusCode::kInternal) {
          ExpectWords(status.message(),
                      "NCCL did not begin a batch within 1 s");
        }
      },
      Nccl, job);
}

TEST(nccl_is_asked_to_make_its_links_at_once) {
  ASSERT_EQ(unsetenv("NCCL_RUNTIME_CONNECT"), 0);
  LinkNcclAtOnce();
  EXPECT_EQ(std::string(getenv("NCCL_RUNTIME_CONNECT")), "0");
  ASSERT_EQ(setenv("NCCL_RUNTIME_CONNECT", "1", 1), 0);
  LinkNcclAtOnce();
  EXPECT_EQ(std::string(getenv("NCCL_RUNTIME_CONNECT")), "1");
}

TEST(a_full_gpu_has_a_remedy) {
  NcclLibrary nccl;
  nccl.text_of_error = [](int) { return "unhandled cuda error"; };
  nccl.last_error = [](NcclComm) { return "Cuda failure 2 'out of memory'"; };
  ExpectWords(nccl.Check(1, "NCCL failed", nullptr).message(),
              "NCCL failed: unhandled cuda error (1), Cuda failure 2 'out of "
              "memory'. The GPU is full. Other processes may hold its memory: "
              "call hvd.pin_gpu()");
}

}  // namespace
}  // namespace hvd
