// SPDX-License-Identifier: Apache-2.0
// Runtime while GPUs try NCCL for a set, and the trial does not end: what goes
// on meanwhile, and when it is given up.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>

#include "nccl_jobs.h"

namespace hvd {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

bool IsKnown(const Lines& lines) { return !lines.With(kStaysStaged).empty(); }

// All ranks, whose background threads have something to do meanwhile.
void PassTime(Runtime* runtime, milliseconds time) {
  const Clock::time_point end = Clock::now() + time;
  for (bool is_over = false; !is_over;) {
    const float mine = Clock::now() < end ? 0.0f : 1.0f;
    PendingPtr all =
        Start(runtime, {"time", Verb::kAllreduce, ReduceOp::kMin}, {{mine}});
    ASSERT_EQ(all->Wait().message(), "");
    is_over = all->out[0][0] > 0;
  }
}

// Rank 1's GPU comes to what the other set does, and waits for that of rank 0,
// which is at the trial. Without a limit of its own that would be a stall.
TEST(a_trial_that_hangs_does_not_end_the_job) {
  FakeNccl::Reset();
  const Lines lines;
  GpuJob job = OfSets({{0, 1}});
  job.options.stall_warning_s = 0;
  job.options.stall_shutdown_s = 10;
  job.connect_limit = seconds(60);
  RunOnGpus(
      2,
      [&](int rank, Runtime* runtime, TestGpu* gpu) {
        ASSERT_TRUE(BecomesDirect(rank, 2, runtime, gpu));
        // It knows that at once. Rank 0 only knows that no link comes.
        FakeNccl::FailTrials(1);
        PassTime(runtime, milliseconds(0));
        EXPECT_TRUE(SumUntil(rank, 2, runtime, gpu, [&] {
          SumOnce(rank, 2, runtime, gpu, 1);
          return IsKnown(lines);
        }));
        // Both sets go on.
        for (const int set : {0, 1}) SumOnce(rank, 2, runtime, gpu, set);
      },
      Nccl, job);
  const auto found = lines.With(kStaysStaged);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(Contains(found[0], "rank 1 says: NCCL did not start a batch"));
}

// What one rank was told holds for all: the others do not wait for longer.
TEST(the_shortest_limit_of_a_trial_holds_for_all) {
  FakeNccl::Reset();
  FakeNccl::HoldLinks();
  const Lines lines;
  GpuJob job;
  std::atomic<int> owners{0};
  job.change_owner = [&](LaneOwner* owner) {
    if (owners++ == 0) owner->stall_shutdown_s = 2;
  };
  RunOnGpus(
      3,
      [&](int rank, Runtime* runtime, TestGpu* gpu) {
        EXPECT_TRUE(
            SumUntil(rank, 3, runtime, gpu, [&] { return IsKnown(lines); }));
      },
      Nccl, job);
  const auto found = lines.With(kStaysStaged);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(Contains(found[0],
                       "rank 0 says: NCCL did not move its first numbers "
                       "within 1 s, half of HVD_STALL_SHUTDOWN_S; NCCL_DEBUG"));
}

// How long a step of such a set waits at most. Rank 0, which leads it, is at
// the end of its trial, and rank 1 is not.
Clock::duration LongestStep(int batches_in_flight, milliseconds limit) {
  FakeNccl::Reset();
  FakeNccl::FailTrials(0);
  const Lines lines;
  GpuJob job;
  job.options.batches_in_flight = batches_in_flight;
  job.connect_limit = limit;
  Clock::duration longest{};
  RunOnGpus(
      2,
      [&](int rank, Runtime* runtime, TestGpu* gpu) {
        Clock::time_point last = Clock::now();
        EXPECT_TRUE(SumUntil(rank, 2, runtime, gpu, [&] {
          const Clock::time_point now = Clock::now();
          if (rank == 0) longest = std::max(longest, now - last);
          last = now;
          return IsKnown(lines);
        }));
      },
      Nccl, job);
  const auto found = lines.With(kStaysStaged);
  EXPECT_EQ(found.size(), 1u);
  EXPECT_EQ(FakeNccl::completed(), 0);
  return longest;
}

TEST(staged_batches_go_on_while_a_trial_hangs) {
  const seconds limit(4);
  for (const int batches_in_flight : {1, 4}) {
    EXPECT_TRUE(LongestStep(batches_in_flight, limit) < limit / 2);
  }
}

// Its framework has more to do than NCCL has time for.
TEST(a_gpu_that_comes_late_to_the_trial) {
  FakeNccl::Reset();
  FakeNccl::HoldConnect();
  const Lines lines;
  GpuJob job;
  const milliseconds limit(3000);
  job.change_owner = [](LaneOwner* owner) { owner->stall_shutdown_s = 6; };
  RunOnGpus(
      2,
      [&](int rank, Runtime* runtime, TestGpu* gpu) {
        SumOnce(rank, 2, runtime, gpu);
        const auto is_open = std::make_shared<std::atomic<bool>>(rank == 0);
        gpu->gpu().Queue(gpu->framework_stream(),
                         [is_open] { return is_open->load(); });
        FakeNccl::ReleaseConnect(rank);
        PassTime(runtime, limit + limit / 3);
        *is_open = true;
        EXPECT_TRUE(BecomesDirect(rank, 2, runtime, gpu));
      },
      Nccl, job);
  EXPECT_FALSE(IsKnown(lines));
}

}  // namespace
}  // namespace hvd
