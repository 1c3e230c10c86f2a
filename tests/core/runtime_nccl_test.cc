// SPDX-License-Identifier: Apache-2.0
// Runtime with tensors on GPUs that work among themselves by NCCL: how they
// come to it, and what they leave to the host.
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "nccl_jobs.h"
#include "temp_directory.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

TEST(gpus_come_to_reduce_among_themselves) {
  for (const int size : {1, 2, 4}) {
    FakeNccl::Reset();
    const Lines lines;
    RunOnGpus(
        size,
        [size](int rank, Runtime* runtime, TestGpu* gpu) {
          ASSERT_TRUE(BecomesDirect(rank, size, runtime, gpu));
          EXPECT_EQ(FakeNccl::identities(), 1);
        },
        Nccl);
  }
}

TEST(tensors_of_the_host_and_of_gpus_in_any_order) {
  FakeNccl::Reset();
  const int size = 3;
  RunOnGpus(
      size,
      [&](int rank, Runtime* runtime, TestGpu* gpu) {
        // It becomes direct somewhere in between.
        for (int step = 0; step < 40; ++step) {
          std::vector<std::unique_ptr<GpuCall>> calls(6);
          std::vector<PendingPtr> of_host(6);
          for (int i = 0; i < 6; ++i) {
            const int t = (i + rank * 2) % 6;
            const size_t count = static_cast<size_t>(t) * 977;
            const std::string name = "t" + std::to_string(t);
            of_host[t] =
                Start(runtime, {"host" + name}, {Filled(count, 2.0f + step)});
            calls[t] = std::make_unique<GpuCall>(
                gpu, runtime, name, Filled(count, rank + 1.0f + step));
          }
          for (int t = 0; t < 6; ++t) {
            const size_t count = static_cast<size_t>(t) * 977;
            EXPECT_EQ(calls[t]->Wait().message(), "");
            EXPECT_EQ(of_host[t]->Wait().message(), "");
            EXPECT_TRUE(calls[t]->Values() == Filled(count, 6.0f + 3 * step));
            EXPECT_TRUE(of_host[t]->out[0] == Filled(count, 6.0f + 3 * step));
          }
        }
        EXPECT_TRUE(BecomesDirect(rank, size, runtime, gpu));
      },
      Nccl);
}

TEST(ops_and_scales) {
  FakeNccl::Reset();
  const int size = 3;
  RunOnGpus(
      size,
      [&](int rank, Runtime* runtime, TestGpu* gpu) {
        ASSERT_TRUE(BecomesDirect(rank, size, runtime, gpu));
        const int before = FakeNccl::completed();
        const struct {
          GpuAsk ask;
          float result;
        } cases[] = {
            {{"sum", ReduceOp::kSum}, 9},
            {{"mean", ReduceOp::kAverage}, 3},
            {{"least", ReduceOp::kMin}, 2},
            {{"most", ReduceOp::kMax}, 4},
            {{"product", ReduceOp::kProduct}, 24},
            {{"scaled", ReduceOp::kSum, 0.5, 3.0}, 13.5},
            {{"scaled mean", ReduceOp::kAverage, 2.0, 0.25}, 1.5},
            {{"scaled least", ReduceOp::kMin, 2.0, 1.0}, 4},
            // Factors that are 1 together.
            {{"turned", ReduceOp::kMax, -1.0, -1.0}, 2},
            {{"scaled product", ReduceOp::kProduct, 2.0, 0.5}, 96},
        };
        for (const auto& one : cases) {
          GpuCall call(gpu, runtime, one.ask, Filled(33, rank + 2.0f));
          EXPECT_EQ(call.Wait().message(), "");
          for (const float value : call.Values()) {
            EXPECT_NEAR(value, one.result, 1e-6);
          }
        }
        // Nobody is ahead of the others by more than the last, which staged.
        // By then all GPUs have done with them.
        EXPECT_EQ(
            Start(runtime, {"done", Verb::kAllreduce, ReduceOp::kMin}, {{1}})
                ->Wait()
                .message(),
            "");
        // But for the least and the most of floats, where NCCL loses NaN.
        EXPECT_EQ(FakeNccl::completed() - before, 6);
        GpuCall bad(gpu, runtime, {"bad", ReduceOp::kMax},
                    Filled(5, rank == 0 ? std::nanf("") : 1.0f));
        EXPECT_EQ(bad.Wait().message(), "");
        for (const float value : bad.Values()) EXPECT_TRUE(std::isnan(value));
      },
      Nccl);
}

TEST(the_timeline_says_which_way_a_batch_went) {
  FakeNccl::Reset();
  const TempDirectory directory;
  const std::string path = directory.file("all.json");
  Options options = Options::Defaults();
  options.timeline = path;
  RunOnGpus(
      2,
      [&](int rank, Runtime* runtime, TestGpu* gpu) {
        EXPECT_TRUE(BecomesDirect(rank, 2, runtime, gpu));
      },
      Nccl, WithOptions(options));
  const std::string text = TextOf(path);
  EXPECT_TRUE(Contains(text, "\"NCCL_ALLREDUCE\""));
  EXPECT_TRUE(Contains(text, "\"MPI_ALLREDUCE\""));  // those before
}

// --- What keeps them on the host ---

TEST(a_rank_without_the_library) {
  FakeNccl::Reset();
  CheckStaged(
      3, Nothing, [](int rank) { return rank == 1 ? NoNccl(1) : Nccl(rank); },
      "rank 1 says: libnccl.so.2 cannot be loaded: it is not there");
  // NCCL does not listen where nobody will come.
  EXPECT_EQ(FakeNccl::identities(), 0);
}

TEST(ranks_that_share_a_gpu) {
  FakeNccl::Reset();
  CheckStaged(
      3,
      [](int rank, Runtime*, TestGpu* gpu) {
        gpu->gpu().set_identity(rank == 0 ? 7 : 8);
      },
      Nccl, "rank 1 and rank 2 share a GPU");
}

TEST(a_rank_that_looks_for_nan) {
  FakeNccl::Reset();
  Options options = Options::Defaults();
  options.check_numerics = true;
  CheckStaged(2, Nothing, Nccl, "rank 0 says: HVD_CHECK_NUMERICS is set",
              WithOptions(options));
}

TEST(a_rank_that_is_told_not_to) {
  FakeNccl::Reset();
  Options options = Options::Defaults();
  options.nccl = NcclUse::kOff;
  CheckStaged(2, Nothing, Nccl, "rank 0 says: HVD_NCCL is 0",
              WithOptions(options));
}

TEST(a_rank_that_does_not_connect) {
  FakeNccl::Reset();
  FakeNccl::FailConnect(2);
  CheckStaged(3, Nothing, Nccl,
              "rank 2 says: NCCL failed: unhandled system error (2)");
}

TEST(ranks_that_cannot_reach_each_other) {
  FakeNccl::Reset();
  FakeNccl::HoldConnect();
  GpuJob job;
  job.connect_limit = milliseconds(50);
  CheckStaged(3, Nothing, Nccl, "NCCL did not connect within 0 s", job);
}

// --- Tensors that travel together ---

// They are one call of NCCL where all GPUs can pack them.
TEST(tensors_travel_in_one_buffer) {
  for (const bool all_can : {true, false}) {
    FakeNccl::Reset();
    GpuJob job;
    job.kernels = [&](int rank) {
      return rank == 0 || all_can ? FakeKernelImage() : nullptr;
    };
    RunOnGpus(
        2,
        [&](int rank, Runtime* runtime, TestGpu* gpu) {
          ASSERT_TRUE(BecomesDirect(rank, 2, runtime, gpu));
          for (int step = 0; step < 10; ++step) {
            std::vector<std::unique_ptr<GpuCall>> calls;
            for (int t = 0; t < 20; ++t) {
              // Larger than the buffer was before, and then smaller.
              const auto count =
                  static_cast<size_t>((step % 4) * 1000 + t * 77 + 1);
              calls.push_back(std::make_unique<GpuCall>(
                  gpu, runtime,
                  GpuAsk{"t" + std::to_string(t), ReduceOp::kAverage, 0.5, 3},
                  Filled(count, static_cast<float>(rank + step))));
            }
            for (const auto& call : calls) {
              EXPECT_EQ(call->Wait().message(), "");
              for (const float value : call->Values()) {
                EXPECT_NEAR(value, 1.5 * (step + 0.5), 1e-5);
              }
            }
          }
        },
        Nccl, job);
    const int of_tensors = FakeNccl::calls(CommunicatorCall::Kind::kAllreduce);
    const int groups = FakeNccl::completed() * 2;
    EXPECT_EQ(of_tensors == groups, all_can);
    EXPECT_EQ(FakeNccl::misfitting(), 0);
  }
}

// One rank's is enough. All sets are told of in one line.
TEST(a_gpu_without_kernels_is_told_of_once) {
  FakeNccl::Reset();
  const Lines lines;
  GpuJob job = OfSets({{0, 1}});
  job.kernels = [](int rank) {
    return rank == 1 ? nullptr : FakeKernelImage();
  };
  RunOnGpus(
      2,
      [](int rank, Runtime* runtime, TestGpu* gpu) {
        EXPECT_TRUE(BecomesDirect(rank, 2, runtime, gpu));
        EXPECT_TRUE(BecomesDirect(rank, 2, runtime, gpu, 1));
      },
      Nccl, job);
  EXPECT_EQ(lines
                .With("rank 1 has no GPU kernels: hvd_tf was built without "
                      "CUDA's compiler; these stay in host memory: ")
                .size(),
            1u);
}

// The ranks whose GPUs have some hear of the one that has none, and go on.
TEST(a_gpu_without_memory_for_them) {
  FakeNccl::Reset();
  RunOnGpus(
      3,
      [](int rank, Runtime* runtime, TestGpu* gpu) {
        ASSERT_TRUE(BecomesDirect(rank, 3, runtime, gpu));
        if (rank == 1) gpu->RunOutOfBuffers();
        const GpuAsk scaled = {"scaled", ReduceOp::kSum, 0.5};
        GpuCall large(gpu, runtime, scaled, Filled(5000, 1.0f));
        const Status status = large.Wait();
        EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
        EXPECT_TRUE(Contains(status.message(),
                             rank == 1 ? "has no memory for 20032 bytes"
                                       : "rank 1 had no memory"));
        EXPECT_EQ(Contains(status.message(), "; the first is scaled"),
                  rank == 1);
        // Whole tensors go as they lie.
        EXPECT_TRUE(BecomesDirect(rank, 3, runtime, gpu));
      },
      Nccl);
}

}  // namespace
}  // namespace hvd
