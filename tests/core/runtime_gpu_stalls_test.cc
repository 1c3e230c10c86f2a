// SPDX-License-Identifier: Apache-2.0
// Runtime with GPUs that lag or hang: who is named, and what ends the job.
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "nccl_jobs.h"
#include "rounds.h"

namespace hvd {
namespace {

using Find = std::function<Result<const NcclLibrary*>(int rank)>;

GpuJob WithLimits(double warning_s, double shutdown_s) {
  GpuJob job;
  job.options.stall_warning_s = warning_s;
  job.options.stall_shutdown_s = shutdown_s;
  return job;
}

int Count(const Lines& lines, const std::string& words) {
  return static_cast<int>(lines.With(words).size());
}

void Await(const Lines& lines, const std::string& words) {
  const auto limit =
      std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (Count(lines, words) == 0) {
    if (std::chrono::steady_clock::now() > limit) {
      EXPECT_EQ("no line", words);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// Rank 1's GPU does not come to a tensor, and nobody stops anything.
double PlayLagThatEndsTheJob(const Find& find, bool is_direct,
                             const GpuJob& job) {
  FakeNccl::Reset();
  const Lines lines;
  std::promise<void> ended;
  const auto end = ended.get_future().share();
  const double late_s = RunOnGpus(
      2,
      [&](int rank, Runtime* runtime, TestGpu* gpu) {
        if (is_direct) {
          EXPECT_TRUE(BecomesDirect(rank, 2, runtime, gpu));
        } else {
          GpuCall first(gpu, runtime, "first", Filled(10, 1.0f));
          EXPECT_EQ(first.Wait().message(), "");
        }
        if (rank == 1) gpu->ComputeOnce(std::make_shared<bool>(false));
        GpuCall sum(gpu, runtime, "sum", Filled(100, 1.0f));
        if (rank == 1) {
          end.wait();
          runtime->Stop();
          (void)sum.Wait();
          return;
        }
        Status status = sum.Wait();
        // It is said to be done when GPUs have it.
        EXPECT_EQ(status.ok(), job.options.async_completion);
        if (status.ok()) {
          Await(lines, "its GPU has not come to a batch");
          GpuCall next(gpu, runtime, "next", Filled(100, 1.0f));
          status = next.Wait();
        }
        EXPECT_EQ(status.code(), StatusCode::kPeerLost);
        EXPECT_TRUE(Contains(status.message(), "rank 1 (localhost) failed: "));
        EXPECT_TRUE(Contains(status.message(), "its GPU has not come to "));
        EXPECT_TRUE(Contains(status.message(), "HVD_STALL_SHUTDOWN_S=3"));
        ended.set_value();
      },
      find, job);
  EXPECT_TRUE(Count(lines, "waited for the GPU of rank 1 (localhost)") > 0);
  EXPECT_EQ(Count(lines, "waited for the GPU of rank 0"), 0);
  return late_s;
}

void CheckLagThatEndsTheJob(const Find& find, bool is_direct,
                            const GpuJob& job) {
  // Late by a warning's time, the GPU of rank 0 is rightly named as well.
  PlayUntilOnTime(job.options.stall_warning_s / 2,
                  [&] { return PlayLagThatEndsTheJob(find, is_direct, job); });
}

TEST(a_gpu_that_hangs_is_named_where_tensors_are_staged) {
  CheckLagThatEndsTheJob(NoNccl, false, WithLimits(0.5, 3));
}

TEST(a_gpu_that_hangs_is_named_where_gpus_reduce) {
  CheckLagThatEndsTheJob(Nccl, true, WithLimits(0.5, 3));
}

// The next tensor of rank 0 is behind the one that its GPU waits in.
TEST(a_gpu_that_hangs_is_named_where_streams_wait) {
  GpuJob job = WithLimits(0.5, 3);
  job.options.async_completion = true;
  CheckLagThatEndsTheJob(Nccl, true, job);
}

TEST(a_gpu_that_lags_is_only_warned_of) {
  for (const bool is_direct : {false, true}) {
    FakeNccl::Reset();
    const Lines lines;
    RunOnGpus(
        2,
        [&](int rank, Runtime* runtime, TestGpu* gpu) {
          if (is_direct) {
            ASSERT_TRUE(BecomesDirect(rank, 2, runtime, gpu));
          }
          const auto is_open = std::make_shared<std::atomic<bool>>(rank == 0);
          gpu->gpu().Queue(gpu->framework_stream(),
                           [is_open] { return is_open->load(); });
          GpuCall sum(gpu, runtime, "late", Filled(100, 1.0f + rank));
          if (rank == 1) {
            Await(lines,
                  "1 tensor has waited for the GPU of rank 1 (localhost): "
                  "'late'. It has other work before that, or hangs.");
            *is_open = true;
          }
          EXPECT_EQ(sum.Wait().message(), "");
          EXPECT_TRUE(sum.Values() == Filled(100, 3.0f));
        },
        is_direct ? Find(Nccl) : Find(NoNccl), WithLimits(0.3, 0));
  }
}

// All inputs are there, so each rank only knows that GPUs wait.
TEST(a_kernel_that_hangs) {
  FakeNccl::Reset();
  const Lines lines;
  std::promise<void> ended;
  const auto end = ended.get_future().share();
  RunOnGpus(
      2,
      [&](int rank, Runtime* runtime, TestGpu* gpu) {
        ASSERT_TRUE(BecomesDirect(rank, 2, runtime, gpu));
        if (rank == 1) FakeNccl::HoldKernels(1);
        GpuCall sum(gpu, runtime, "sum", Filled(100, 1.0f));
        // Rank 0's may be there.
        if (rank == 0) (void)sum.Wait();
        GpuCall next(gpu, runtime, "next", Filled(100, 1.0f));
        if (rank == 1) {
          end.wait();
          runtime->Stop();
          EXPECT_FALSE(sum.Wait().ok());
          EXPECT_FALSE(next.Wait().ok());
          return;
        }
        const Status status = next.Wait();
        EXPECT_EQ(status.code(), StatusCode::kPeerLost);
        EXPECT_TRUE(
            Contains(status.message(), "its GPU has waited for another one"));
        ended.set_value();
      },
      Nccl, WithLimits(0.5, 2));
  EXPECT_TRUE(Count(lines, "That of rank 1 (localhost) waits for another one") >
              0);
}

}  // namespace
}  // namespace hvd
