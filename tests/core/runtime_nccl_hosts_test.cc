// SPDX-License-Identifier: Apache-2.0
// Runtime with GPUs that work among themselves within hosts only, whose sums
// go between the hosts by the host transport.
#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "nccl_jobs.h"

namespace hvd {
namespace {

using Kind = CommunicatorCall::Kind;

GpuJob OfHosts(std::vector<std::string> hosts) {
  GpuJob job;
  job.options.hierarchical_allreduce = true;
  job.hosts = std::move(hosts);
  return job;
}

// Each host has three ranks.
GpuJob OfTwoHosts() { return OfHosts({"a", "a", "b", "b", "a", "b"}); }

TEST(gpus_reduce_by_host) {
  for (const bool in_stream_order : {false, true}) {
    FakeNccl::Reset();
    GpuJob job = OfTwoHosts();
    job.options.async_completion = in_stream_order;
    const int size = 6;
    RunOnGpus(
        size,
        [&](int rank, Runtime* runtime, TestGpu* gpu) {
          ASSERT_TRUE(BecomesDirect(rank, size, runtime, gpu));
          // One for each host.
          EXPECT_EQ(FakeNccl::identities(), 2);
          // Several are under way at once, of any size.
          std::vector<std::unique_ptr<GpuCall>> calls;
          for (int t = 0; t < 60; ++t) {
            const auto count = static_cast<size_t>((t % 7) * 1000 + t);
            calls.push_back(std::make_unique<GpuCall>(
                gpu, runtime,
                GpuAsk{"t" + std::to_string(t), ReduceOp::kAverage, 0.5, 3},
                Filled(count, static_cast<float>(rank + t))));
          }
          for (int t = 0; t < 60; ++t) {
            EXPECT_EQ(calls[t]->Wait().message(), "");
            for (const float value : calls[t]->Values()) {
              EXPECT_NEAR(value, 1.5 * (t + 2.5), 1e-4);
            }
          }
        },
        Nccl, job);
    EXPECT_EQ(FakeNccl::misfitting(), 0);
    EXPECT_EQ(FakeNccl::gone_early(), 0);
    EXPECT_EQ(FakeNccl::calls(Kind::kAllreduce), 0);
    EXPECT_EQ(FakeNccl::calls(Kind::kReducescatter),
              FakeNccl::calls(Kind::kAllgather));
  }
}

// NCCL says nothing of blocks. What goes between the hosts does not go by it.
TEST(what_hosts_send_is_counted) {
  FakeNccl::Reset();
  RunOnGpus(
      6,
      [](int rank, Runtime* runtime, TestGpu* gpu) {
        ASSERT_TRUE(BecomesDirect(rank, 6, runtime, gpu));
        constexpr size_t kCount = 3 * 4096;
        const VerbCounters& sent = runtime->counters().verbs[0];
        const uint64_t before = sent.payload_bytes.value();
        GpuCall sum(gpu, runtime, GpuAsk{"counted", ReduceOp::kSum},
                    Filled(kCount, static_cast<float>(rank)));
        EXPECT_EQ(sum.Wait().message(), "");
        // Each of three ranks owns a third of the sum. It sends its partner
        // half of that, and gets the other half from it added up.
        EXPECT_EQ(sent.payload_bytes.value() - before,
                  kCount / 3 * sizeof(float));
      },
      Nccl, OfTwoHosts());
}

TEST(ops_by_host) {
  FakeNccl::Reset();
  RunOnGpus(
      6,
      [](int rank, Runtime* runtime, TestGpu* gpu) {
        ASSERT_TRUE(BecomesDirect(rank, 6, runtime, gpu));
        const struct {
          ReduceOp op;
          float result;
        } cases[] = {{ReduceOp::kSum, 21},
                     {ReduceOp::kAverage, 3.5},
                     {ReduceOp::kMin, 1},
                     {ReduceOp::kMax, 6},
                     {ReduceOp::kProduct, 720}};
        for (const auto& one : cases) {
          const int before = FakeNccl::calls(Kind::kReducescatter);
          GpuCall call(gpu, runtime, {Name(one.op), one.op},
                       Filled(33, rank + 1.0f));
          EXPECT_EQ(call.Wait().message(), "");
          EXPECT_TRUE(call.Values() == Filled(33, one.result));
          // NCCL loses NaN in the least and the most.
          if (one.op == ReduceOp::kMin || one.op == ReduceOp::kMax) continue;
          EXPECT_TRUE(FakeNccl::calls(Kind::kReducescatter) > before);
        }
      },
      Nccl, OfTwoHosts());
}

TEST(hosts_that_are_not_alike_are_staged) {
  FakeNccl::Reset();
  CheckStaged(3, Nothing, Nccl,
              "rank 0's host has 2 ranks, and that of rank 2 has 1",
              OfHosts({"a", "a", "b"}));
  EXPECT_EQ(FakeNccl::identities(), 0);
}

TEST(a_single_host_needs_no_other) {
  FakeNccl::Reset();
  RunOnGpus(
      2,
      [](int rank, Runtime* runtime, TestGpu* gpu) {
        EXPECT_TRUE(BecomesDirect(rank, 2, runtime, gpu));
      },
      Nccl, OfHosts({"a", "a"}));
  EXPECT_TRUE(FakeNccl::calls(Kind::kAllreduce) > 0);
}

TEST(hosts_that_nccl_does_not_connect_are_told_what_helps) {
  FakeNccl::Reset();
  FakeNccl::HoldConnect();
  GpuJob job = OfHosts({"a", "a", "b", "b"});
  job.options.hierarchical_allreduce = false;
  job.connect_limit = std::chrono::milliseconds(50);
  CheckStaged(4, Nothing, Nccl, "HVD_HIERARCHICAL_ALLREDUCE=1 needs it", job);
}

// Ranks submit in orders of their own, to sets that share ranks and hosts.
TEST(sets_that_share_gpus_by_host) {
  FakeNccl::Reset();
  GpuJob job = OfTwoHosts();
  // Two of each host, and one of each: the latter are staged.
  job.sets = {{0, 1, 2, 3}, {4, 5}};
  const std::vector<std::vector<int>> members = {
      {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3}, {4, 5}};
  RunOnGpus(
      6,
      [&](int rank, Runtime* runtime, TestGpu* gpu) {
        ASSERT_TRUE(BecomesDirect(rank, 6, runtime, gpu));
        std::mt19937 random(static_cast<unsigned>(rank));
        for (int step = 0; step < 30; ++step) {
          std::vector<int> order = {0, 1, 2, 3, 4, 5};
          std::shuffle(order.begin(), order.end(), random);
          std::vector<std::unique_ptr<GpuCall>> calls(6);
          for (const int t : order) {
            const int set = t % 3;
            const auto& ranks = members[set];
            if (!std::count(ranks.begin(), ranks.end(), rank)) continue;
            GpuAsk ask{"t" + std::to_string(t)};
            ask.set = set;
            calls[t] = std::make_unique<GpuCall>(
                gpu, runtime, ask,
                Filled(static_cast<size_t>(t * 700 + 1),
                       static_cast<float>(rank + step)));
          }
          for (int t = 0; t < 6; ++t) {
            if (calls[t] == nullptr) continue;
            float sum = 0;
            for (const int r : members[t % 3]) {
              sum += static_cast<float>(r + step);
            }
            EXPECT_EQ(calls[t]->Wait().message(), "");
            EXPECT_TRUE(calls[t]->Values() ==
                        Filled(static_cast<size_t>(t * 700 + 1), sum));
          }
        }
      },
      Nccl, job);
  EXPECT_EQ(FakeNccl::misfitting(), 0);
}

// All ranks of both hosts hear of it, and none waits for its peers.
TEST(a_gpu_without_memory_for_its_shard) {
  FakeNccl::Reset();
  RunOnGpus(
      4,
      [](int rank, Runtime* runtime, TestGpu* gpu) {
        ASSERT_TRUE(BecomesDirect(rank, 4, runtime, gpu));
        if (rank == 1) gpu->RunOutOfBuffers();
        GpuCall large(gpu, runtime, "large", Filled(5000, 1.0f));
        const Status status = large.Wait();
        EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
        EXPECT_TRUE(Contains(status.message(), rank == 1
                                                   ? "has no memory for"
                                                   : "rank 1 had no memory"));
        // The buffer that it has is large enough for these.
        EXPECT_TRUE(BecomesDirect(rank, 4, runtime, gpu));
      },
      Nccl, OfHosts({"a", "a", "b", "b"}));
}

// A communicator that fails, before its kernel is there or while it runs, or
// between the two launches: the batch fails on all ranks, with those of the
// other host.
TEST(a_failure_of_one_host_ends_on_all) {
  enum class Way { kLaunch, kKernel, kNow };
  for (const Way way : {Way::kLaunch, Way::kKernel, Way::kNow}) {
    FakeNccl::Reset();
    RunOnGpus(
        4,
        [&](int rank, Runtime* runtime, TestGpu* gpu) {
          ASSERT_TRUE(BecomesDirect(rank, 4, runtime, gpu));
          if (rank == 0) {
            if (way == Way::kLaunch) FakeNccl::FailLaunch(1);
            if (way == Way::kKernel) FakeNccl::FailAsync(1);
            if (way == Way::kNow) FakeNccl::FailNow(1);
          }
          Status status;
          for (int step = 0; step < 200 && status.ok(); ++step) {
            GpuCall sum(gpu, runtime, "sum", Filled(1000, 1.0f));
            status = sum.Wait();
            if (status.ok()) EXPECT_TRUE(sum.Values() == Filled(1000, 4.0f));
          }
          EXPECT_FALSE(status.ok());
          // The job lives on, and says so in each step.
          GpuCall again(gpu, runtime, "again", Filled(10, 1.0f));
          EXPECT_FALSE(again.Wait().ok());
        },
        Nccl, OfHosts({"a", "a", "b", "b"}));
  }
}

}  // namespace
}  // namespace hvd
