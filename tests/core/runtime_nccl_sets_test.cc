// SPDX-License-Identifier: Apache-2.0
// Runtime with GPUs that work among themselves by NCCL: joins, sets that share
// ranks, and steps that are aborted. The job goes on.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nccl_jobs.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

Status JoinAll(Runtime* runtime) {
  auto call = std::make_shared<JoinCall>();
  std::promise<Status> joined;
  call->ticket = runtime->NewTicket();
  call->done = [&](const Status& status, int) { joined.set_value(status); };
  runtime->Join(*runtime->process_set(0), call);
  return joined.get_future().get();
}

TEST(a_rank_that_has_joined) {
  FakeNccl::Reset();
  const int size = 3;
  RunOnGpus(
      size,
      [&](int rank, Runtime* runtime, TestGpu* gpu) {
        for (const bool before : {true, false}) {
          // First before they are direct, and then after it.
          if (!before) {
            ASSERT_TRUE(BecomesDirect(rank, size, runtime, gpu));
          }
          if (rank != 1) {
            for (int step = 0; step < 5; ++step) {
              GpuCall sum(gpu, runtime, "sum", Filled(10, 1.0f + rank));
              EXPECT_EQ(sum.Wait().message(), "");
              EXPECT_TRUE(sum.Values() == Filled(10, 4.0f));
            }
          }
          EXPECT_EQ(JoinAll(runtime).message(), "");
        }
        EXPECT_TRUE(BecomesDirect(rank, size, runtime, gpu));
      },
      Nccl);
}

void SumUp(int rank, Runtime* runtime, TestGpu* gpu, float sum) {
  GpuCall call(gpu, runtime, "sum", Filled(10, 1.0f + rank));
  EXPECT_EQ(call.Wait().message(), "");
  EXPECT_TRUE(call.Values() == Filled(10, sum));
}

// All of three ranks know of the communicator once rank 0 has given it an
// identity, and some batches have followed.
void UntilAllConnect(int rank, Runtime* runtime, TestGpu* gpu) {
  for (int after = 0; after < 3;) {
    SumUp(rank, runtime, gpu, 6.0f);
    const float mine = FakeNccl::identities() == 1 ? 1.0f : 0.0f;
    PendingPtr all =
        Start(runtime, {"known", Verb::kAllreduce, ReduceOp::kMin}, {{mine}});
    ASSERT_EQ(all->Wait().message(), "");
    after += all->out[0][0] > 0 ? 1 : 0;
  }
}

// It is connected while it has joined, and says so while the others meet again
// and again. It must not ask twice.
TEST(a_rank_that_joins_while_it_connects) {
  const int size = 3;
  for (int round = 0; round < 10; ++round) {
    FakeNccl::Reset();
    FakeNccl::HoldConnect();
    RunOnGpus(
        size,
        [&](int rank, Runtime* runtime, TestGpu* gpu) {
          UntilAllConnect(rank, runtime, gpu);
          FakeNccl::ReleaseConnect(rank == 1 ? 0 : rank);
          if (rank != 1) {
            for (int step = 0; step < 40; ++step) {
              SumUp(rank, runtime, gpu, 4.0f);
              if (rank == 0 && step == 10 + round) FakeNccl::ReleaseConnect(1);
            }
          }
          ASSERT_EQ(JoinAll(runtime).message(), "");
          EXPECT_TRUE(BecomesDirect(rank, size, runtime, gpu));
        },
        Nccl);
    if (test::failures > 0) return;
  }
}

// It has tried to connect when it is back, as the others have. One of them
// could not. Nobody waits for a meeting that the others do not come to.
TEST(a_rank_that_joins_while_another_cannot_connect) {
  FakeNccl::Reset();
  FakeNccl::HoldConnect();
  FakeNccl::FailConnect(2);
  const int size = 3;
  std::atomic<int> asked{0}, answered{0};  // by all ranks together
  GpuJob job;
  job.change_owner = [&](LaneOwner* owner) {
    owner->ask_to_meet = [&, ask = std::move(owner->ask_to_meet)](auto answer) {
      ++asked;
      ask([&answered, answer](const Status& status) {
        ++answered;
        answer(status);
      });
    };
  };
  const Lines lines;
  RunOnGpus(
      size,
      [&](int rank, Runtime* runtime, TestGpu* gpu) {
        UntilAllConnect(rank, runtime, gpu);
        FakeNccl::ReleaseConnect(rank == 1 ? 0 : rank);
        if (rank != 1) {
          for (int step = 0; step < 40; ++step) {
            SumUp(rank, runtime, gpu, 4.0f);
            if (rank == 0 && step == 20) FakeNccl::ReleaseConnect(1);
          }
        }
        ASSERT_EQ(JoinAll(runtime).message(), "");
        StayStaged(rank, size, runtime, gpu, lines);
        // They ask behind a batch, and there are no more. Who leaves answers.
        const auto limit =
            std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (answered < asked && std::chrono::steady_clock::now() < limit) {
          std::this_thread::sleep_for(milliseconds(1));
        }
        EXPECT_EQ(answered.load(), asked.load());
      },
      Nccl, job);
  EXPECT_TRUE(asked > size);
  const std::vector<std::string> reasons = lines.With(kStaysStaged);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_TRUE(Contains(reasons[0], "rank 2 says: NCCL failed"));
}

// Each rank comes to its sets in an order of its own. The GPU does one batch
// at a time.
TEST(sets_that_share_ranks) {
  FakeNccl::Reset();
  const std::vector<std::vector<int>> sets = {
      {0, 1, 2}, {0, 1}, {1, 2}, {0, 2}, {2}};
  std::atomic<int> direct{0};
  RunOnGpus(
      3,
      [&](int rank, Runtime* runtime, TestGpu* gpu) {
        std::mt19937 draw(static_cast<unsigned>(rank));
        for (int step = 0; step < 60; ++step) {
          std::vector<int> mine;
          for (int i = 0; i < 15; ++i) {
            const std::vector<int>& set = sets[static_cast<size_t>(i % 5)];
            if (std::count(set.begin(), set.end(), rank) > 0) mine.push_back(i);
          }
          std::shuffle(mine.begin(), mine.end(), draw);
          std::map<int, std::unique_ptr<GpuCall>> calls;
          for (const int i : mine) {
            const auto values = Filled(static_cast<size_t>(i) * 31 + 1,
                                       static_cast<float>(rank + step));
            calls[i] = std::make_unique<GpuCall>(
                gpu, runtime,
                GpuAsk{"t" + std::to_string(i), ReduceOp::kSum, 1, 1, i % 5},
                values);
          }
          for (const auto& [i, call] : calls) {
            float sum = 0;
            for (const int r : sets[static_cast<size_t>(i % 5)]) {
              sum += static_cast<float>(r + step);
            }
            EXPECT_EQ(call->Wait().message(), "");
            EXPECT_TRUE(call->Values() ==
                        Filled(static_cast<size_t>(i) * 31 + 1, sum));
          }
          if (step == 50) direct = FakeNccl::completed();
        }
      },
      Nccl, OfSets({sets.begin() + 1, sets.end()}));
  // One of each set, and by then all batches went that way. A rank that slept
  // before it looked may have found a part of the next step done. Eight steps
  // are left then, and a set's three tensors may share a batch.
  EXPECT_EQ(FakeNccl::identities(), 5);
  EXPECT_TRUE(FakeNccl::completed() >= direct + 8 * 5);
  EXPECT_EQ(FakeNccl::gone_early(), 0);
}

// Its GPU has done with the last batch long before the other's has.
TEST(a_rank_that_leaves_first) {
  FakeNccl::Reset();
  std::atomic<bool> has_sum{false};
  RunOnGpus(
      2,
      [&](int rank, Runtime* runtime, TestGpu* gpu) {
        ASSERT_TRUE(BecomesDirect(rank, 2, runtime, gpu));
        if (rank == 1) FakeNccl::HoldKernels(1);
        GpuCall sum(gpu, runtime, "last", Filled(100, 1.0f + rank));
        if (rank == 1) {
          // Rank 0 may fail before it has one.
          for (int ms = 0; !has_sum && ms < 20000; ++ms) {
            std::this_thread::sleep_for(milliseconds(1));
          }
          EXPECT_TRUE(has_sum);
          // So long rank 0 could go, and must not.
          std::this_thread::sleep_for(milliseconds(200));
          FakeNccl::ReleaseKernels();
        }
        EXPECT_EQ(sum.Wait().message(), "");
        EXPECT_TRUE(sum.Values() == Filled(100, 3.0f));
        if (rank == 0) has_sum = true;
      },
      Nccl);
  EXPECT_EQ(FakeNccl::gone_early(), 0);
}

// When a call is done, the background thread's pass that served the one before
// it is over. In set 1 the rank is alone.
void SumAlone(Runtime* runtime, int times) {
  Ask ask{"alone"};
  ask.set = 1;
  for (int i = 0; i < times; ++i) {
    EXPECT_EQ(Start(runtime, ask, {Filled(2, 1.0f)})->Wait().message(), "");
  }
}

// Its entry ends with the step's words, though the GPUs complete the batch
// once its time is over. The next step is right.
TEST(a_step_that_is_aborted) {
  FakeNccl::Reset();
  const int size = 2;
  std::atomic<bool> is_unwanted{false};
  RunOnGpus(
      size,
      [&](int rank, Runtime* runtime, TestGpu* gpu) {
        ASSERT_TRUE(BecomesDirect(rank, size, runtime, gpu));
        const auto is_open = std::make_shared<std::atomic<bool>>(rank != 1);
        gpu->gpu().Queue(gpu->framework_stream(),
                         [is_open] { return is_open->load(); });
        const int launched = FakeNccl::launched(rank);
        GpuCall sum(gpu, runtime, GpuAsk{"slow", ReduceOp::kSum, 1, 1, 0, 5},
                    Filled(1000, 1.0f));
        // Rank 1's GPU is late.
        EXPECT_TRUE(FakeNccl::WaitUntilLaunched(rank, launched + 1));
        EXPECT_FALSE(sum.told());
        if (rank == 0) {
          runtime->Cancel(0, sum.ticket, Cancelled("the step was aborted"));
          SumAlone(runtime, 1);  // then its 100 ms have begun
          std::this_thread::sleep_for(milliseconds(150));
          SumAlone(runtime, 3);  // then it has been found to be over
          is_unwanted = true;
        }
        while (!is_unwanted) std::this_thread::sleep_for(milliseconds(1));
        *is_open = true;
        const Status status = sum.Wait();
        if (rank == 0) EXPECT_EQ(status.message(), "the step was aborted");
        EXPECT_TRUE(BecomesDirect(rank, size, runtime, gpu));
      },
      Nccl, OfSets({{0}}));
}

}  // namespace
}  // namespace hvd
