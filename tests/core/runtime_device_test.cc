// SPDX-License-Identifier: Apache-2.0
// Runtime with tensors on a GPU that is made up, which works by itself.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/runtime.h"
#include "gpu_calls.h"
#include "harness.h"
#include "runtime_calls.h"
#include "runtime_jobs.h"

namespace hvd {
namespace {

TEST(runtime_carries_tensors_of_the_host_and_of_a_gpu) {
  for (int size : {1, 3}) {
    RunOnGpus(
        size,
        [size](int rank, Runtime* runtime, TestGpu* gpu) {
          for (int step = 0; step < 20; ++step) {
            std::vector<std::unique_ptr<GpuCall>> calls;
            std::vector<PendingPtr> of_host;
            // Each rank in an order of its own.
            for (int i = 0; i < 6; ++i) {
              const int t = (i + rank * 2) % 6;
              const std::string name = "t" + std::to_string(t);
              const size_t count = static_cast<size_t>(t) * 977;
              of_host.push_back(Start(runtime, {"host" + name},
                                      {Filled(count, 2.0f + step)}));
              calls.push_back(std::make_unique<GpuCall>(
                  gpu, runtime, name, Filled(count, rank + 1.0f + step)));
            }
            for (int i = 0; i < 6; ++i) {
              const size_t count =
                  static_cast<size_t>((i + rank * 2) % 6) * 977;
              EXPECT_EQ(calls[i]->Wait().message(), "");
              EXPECT_EQ(of_host[i]->Wait().message(), "");
              EXPECT_TRUE(
                  calls[i]->Values() ==
                  Filled(count, size * (size + 1) / 2.0f + size * step));
              EXPECT_TRUE(of_host[i]->out[0] ==
                          Filled(count, size * (2.0f + step)));
            }
          }
        },
        NoNccl);
  }
}

// The end of a rank whose GPU hangs waits for it, but not for ever.
TEST(runtime_ends_although_a_gpu_hangs) {
  RunOnGpus(
      2,
      [](int rank, Runtime* runtime, TestGpu* gpu) {
        GpuCall first(gpu, runtime, "first", Filled(10, 1.0f));
        EXPECT_EQ(first.Wait().message(), "");
        if (rank == 1) gpu->ComputeOnce(std::make_shared<bool>(false));
        GpuCall sum(gpu, runtime, "sum", Filled(100000, 1.0f));
        if (rank == 0) {
          const Status status = sum.Wait();
          EXPECT_EQ(status.code(), StatusCode::kPeerLost);
          return;
        }
        // Until the batch is on the wire.
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        runtime->Stop();
        EXPECT_FALSE(sum.Wait().ok());
      },
      NoNccl);
}

}  // namespace
}  // namespace hvd
