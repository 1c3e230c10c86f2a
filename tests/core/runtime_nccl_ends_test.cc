// SPDX-License-Identifier: Apache-2.0
// Runtime with GPUs that work among themselves by NCCL: what ends the job.
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "nccl_jobs.h"
#include "rounds.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

TEST(a_gpu_that_hangs) {
  FakeNccl::Reset();
  RunOnGpus(
      2,
      [](int rank, Runtime* runtime, TestGpu* gpu) {
        ASSERT_TRUE(BecomesDirect(rank, 2, runtime, gpu));
        if (rank == 1) gpu->ComputeOnce(std::make_shared<bool>(false));
        const int launched = FakeNccl::launched(1);
        GpuCall sum(gpu, runtime, "sum", Filled(100000, 1.0f));
        if (rank == 0) {
          const Status status = sum.Wait();
          EXPECT_EQ(status.code(), StatusCode::kPeerLost);
          EXPECT_TRUE(Contains(status.message(), "rank 1"));
          return;
        }
        EXPECT_TRUE(FakeNccl::WaitUntilLaunched(1, launched + 1));
        runtime->Stop();
        EXPECT_FALSE(sum.Wait().ok());
      },
      Nccl);
}

TEST(a_launch_that_fails) {
  FakeNccl::Reset();
  RunOnGpus(
      2,
      [](int rank, Runtime* runtime, TestGpu* gpu) {
        ASSERT_TRUE(BecomesDirect(rank, 2, runtime, gpu));
        if (rank == 1) FakeNccl::FailLaunch(1);
        GpuCall sum(gpu, runtime, "sum", Filled(100, 1.0f));
        const Status status = sum.Wait();
        EXPECT_FALSE(status.ok());
        EXPECT_TRUE(Contains(status.message(), "unhandled system error"));
        if (rank == 0) EXPECT_TRUE(Contains(status.message(), "rank 1"));
      },
      Nccl);
}

// It has no cause beside the rank's own memory, and peers wait for its GPU.
TEST(a_gpu_without_memory_at_the_launch) {
  FakeNccl::Reset();
  std::atomic<bool> is_full{false};
  RunOnGpus(
      2,
      [&](int rank, Runtime* runtime, TestGpu* gpu) {
        ASSERT_TRUE(BecomesDirect(rank, 2, runtime, gpu));
        while (rank == 0 && !is_full) {
          std::this_thread::sleep_for(milliseconds(1));
        }
        GpuCall sum(gpu, runtime, "sum", Filled(100, 1.0f));
        if (rank == 1) {
          gpu->gpu().RunOutOfEvents(0);
          is_full = true;
        }
        const Status status = sum.Wait();
        if (rank == 1) {
          EXPECT_EQ(status.code(), StatusCode::kInternal);
          return;
        }
        // Its own sum may be there.
        GpuCall next(gpu, runtime, "next", Filled(100, 1.0f));
        const Status of_next = next.Wait();
        EXPECT_EQ(of_next.code(), StatusCode::kPeerLost);
        EXPECT_TRUE(Contains(of_next.message(), "rank 1"));
      },
      Nccl);
}

// A kernel that waits for the peer is before that of the set whose
// communicator is aborted first.
TEST(a_peer_that_goes_while_two_sets_wait_for_it) {
  FakeNccl::Reset();
  RunOnGpus(
      2,
      [](int rank, Runtime* runtime, TestGpu* gpu) {
        const auto start = [&](const std::string& name, int set) {
          return std::make_unique<GpuCall>(
              gpu, runtime, GpuAsk{name, ReduceOp::kSum, 1, 1, set},
              Filled(100, 1.0f));
        };
        for (const int set : {1, 0}) {
          ASSERT_TRUE(BecomesDirect(rank, 2, runtime, gpu, set));
        }
        EXPECT_EQ(FakeNccl::identities(), 2);
        FakeNccl::AbortWaits(0);
        if (rank == 1) gpu->ComputeOnce(std::make_shared<bool>(false));
        const int launched = FakeNccl::launched(rank);
        const auto first = start("first", 1);
        EXPECT_TRUE(FakeNccl::WaitUntilLaunched(rank, launched + 1));
        const auto second = start("second", 0);
        EXPECT_TRUE(FakeNccl::WaitUntilLaunched(rank, launched + 2));
        const auto begin = std::chrono::steady_clock::now();
        if (rank == 1) runtime->Stop();
        for (GpuCall* call : {first.get(), second.get()}) {
          const Status status = call->Wait();
          EXPECT_FALSE(status.ok());
          if (rank == 0) EXPECT_TRUE(Contains(status.message(), "rank 1"));
        }
        EXPECT_TRUE(std::chrono::steady_clock::now() - begin <
                    std::chrono::seconds(20));
      },
      Nccl, OfSets({{0, 1}}));
}

TEST(an_error_that_comes_later) {
  FakeNccl::Reset();
  RunOnGpus(
      2,
      [](int rank, Runtime* runtime, TestGpu* gpu) {
        ASSERT_TRUE(BecomesDirect(rank, 2, runtime, gpu));
        if (rank == 1) FakeNccl::FailAsync(1);
        GpuCall sum(gpu, runtime, "sum", Filled(100, 1.0f));
        const Status status = sum.Wait();
        if (rank == 1) {
          EXPECT_FALSE(status.ok());
          EXPECT_TRUE(Contains(status.message(), "remote process exited"));
        }
        GpuCall next(gpu, runtime, "next", Filled(100, 1.0f));
        EXPECT_FALSE(next.Wait().ok());
      },
      Nccl);
}

// Nobody makes another call, at which it would be seen.
TEST(an_error_while_a_gpu_works) {
  FakeNccl::Reset();
  std::atomic<bool> is_over{false};
  RunOnGpus(
      2,
      [&](int rank, Runtime* runtime, TestGpu* gpu) {
        ASSERT_TRUE(BecomesDirect(rank, 2, runtime, gpu));
        if (rank == 1) FakeNccl::HoldKernels(1);
        const int launched = FakeNccl::launched(rank);
        GpuCall sum(gpu, runtime, "sum", Filled(100, 1.0f));
        EXPECT_TRUE(FakeNccl::WaitUntilLaunched(rank, launched + 1));
        if (rank == 1) FakeNccl::FailNow(1);
        const Status status = sum.Wait();
        if (rank == 1) {
          EXPECT_FALSE(status.ok());
          EXPECT_TRUE(Contains(status.message(), "remote process exited"));
          is_over = true;
        }
        // If this rank left, the other one would have its end for a reason.
        while (!is_over) std::this_thread::sleep_for(milliseconds(10));
      },
      Nccl);
}

// Who was told that a batch is done hears of it by the next one.
TEST(an_error_after_a_batch_was_said_to_be_done) {
  FakeNccl::Reset();
  RunOnGpus(
      2,
      [](int rank, Runtime* runtime, TestGpu* gpu) {
        ASSERT_TRUE(BecomesDirect(rank, 2, runtime, gpu));
        if (rank == 1) FakeNccl::HoldKernels(1);
        GpuCall sum(gpu, runtime, "sum", Filled(100, 1.0f));
        EXPECT_EQ(sum.Wait().message(), "");
        if (rank == 1) FakeNccl::FailNow(1);
        GpuCall next(gpu, runtime, "next", Filled(100, 1.0f));
        const Status status = next.Wait();
        if (rank == 1) {
          EXPECT_TRUE(Contains(status.message(), "remote process exited"));
        }
      },
      Nccl, WithOptions(InStreamOrder()));
}

// What follows in the streams of rank 0 waits for its GPU, which waits for a
// rank that does not answer.
TEST(a_frozen_peer_of_a_batch_that_was_said_to_be_done) {
  FakeNccl::Reset();
  GpuJob job = WithOptions(InStreamOrder());
  job.options.stall_warning_s = 0;
  job.options.stall_shutdown_s = 1;
  job.faults = NewFaults(2);
  std::promise<void> ended;
  const auto end = ended.get_future().share();
  RunOnGpus(
      2,
      [&](int rank, Runtime* runtime, TestGpu* gpu) {
        ASSERT_TRUE(BecomesDirect(rank, 2, runtime, gpu));
        // Its kernel does not come to the GPU.
        if (rank == 1) gpu->ComputeOnce(std::make_shared<bool>(false));
        GpuCall sum(gpu, runtime, "sum", Filled(100, 1.0f + rank));
        EXPECT_EQ(sum.Wait().message(), "");
        if (rank == 1) {
          job.faults[1]->Freeze();
          end.wait();
          job.faults[1]->Thaw();
          return;
        }
        // The framework's stream comes here, whatever the values are.
        (void)sum.Values();
        ended.set_value();
      },
      Nccl, job);
}

}  // namespace
}  // namespace hvd
