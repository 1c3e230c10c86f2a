// SPDX-License-Identifier: Apache-2.0
// The lane over NCCL, of one rank: what is there without a second GPU.
//
// Needs a GPU and libnccl.so.2, and no TensorFlow. Exits with 77 where there is
// no GPU, or no such library.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "gpu_call.h"
#include "harness.h"
#include "thread_world.h"
#include "transport/cuda/cuda_lanes.h"

namespace hvd {
namespace {

std::atomic<int> reductions{0};
const NcclLibrary* real = nullptr;

int CountedAllreduce(const void* in, void* out, size_t count, int dtype, int op,
                     NcclComm comm, CudaStream stream) {
  ++reductions;
  return real->allreduce(in, out, count, dtype, op, comm, stream);
}

// The machine's, which counts its reductions.
Result<const NcclLibrary*> Counted() {
  static const NcclLibrary counted = [] {
    NcclLibrary copy = *real;
    copy.allreduce = &CountedAllreduce;
    return copy;
  }();
  return &counted;
}

void NeedNccl() {
  NeedGpu();
  const auto found = NcclLibrary::OfMachine();
  if (!found.ok()) {
    std::printf("%s\n", found.status().message().c_str());
    std::exit(kNoGpu);
  }
  real = found.value();
}

class Tensor {
 public:
  explicit Tensor(size_t count) : count_(count) {
    CheckCuda(cudaMalloc(&data_, count * sizeof(float)));
  }
  ~Tensor() { (void)cudaFree(data_); }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  void Write(float first) {
    std::vector<float> values(count_);
    for (size_t i = 0; i < count_; ++i) {
      values[i] = first + static_cast<float>(i % 13);
    }
    CheckCuda(cudaMemcpy(data_, values.data(), count_ * sizeof(float),
                         cudaMemcpyHostToDevice));
    CheckCuda(cudaDeviceSynchronize());
  }
  // Whether it is what was written, times `scale`.
  bool Is(float first, float scale) const {
    std::vector<float> values(count_);
    CheckCuda(cudaMemcpy(values.data(), data_, count_ * sizeof(float),
                         cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < count_; ++i) {
      if (values[i] != (first + static_cast<float>(i % 13)) * scale) {
        return false;
      }
    }
    return true;
  }
  void* data() const { return data_; }
  int64_t count() const { return static_cast<int64_t>(count_); }

 private:
  const size_t count_;
  void* data_ = nullptr;
};

void RunAlone(const std::function<void(Runtime*)>& body) {
  NeedNccl();
  ThreadWorld world(1);
  auto backend = world.Open(0);
  auto lanes = std::make_unique<CudaLanes>(backend->doorbell(), &Counted);
  Runtime runtime(std::move(backend), Options::Defaults(), std::move(lanes));
  EXPECT_EQ(runtime.Start({}).message(), "");
  body(&runtime);
  runtime.Stop();
}

double Microseconds(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now() - begin)
      .count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

TEST(sums_become_nccls_and_stay_right) {
  RunAlone([](Runtime* runtime) {
    const FrameworkStream stream;
    std::vector<std::unique_ptr<Tensor>> tensors;
    for (const size_t count : {1, 1000, 3'000'001}) {
      tensors.push_back(std::make_unique<Tensor>(count));
    }
    const auto begin = std::chrono::steady_clock::now();
    double seconds_until_nccl = 0;
    int rounds_by_nccl = 0;
    // Some seconds at most: NCCL looks at the whole machine first.
    for (int round = 0; rounds_by_nccl < 20 && round < 20000; ++round) {
      const int before = reductions;
      std::vector<std::unique_ptr<GpuSum>> sums;
      for (size_t t = 0; t < tensors.size(); ++t) {
        tensors[t]->Write(static_cast<float>(round % 7));
        sums.push_back(std::make_unique<GpuSum>(
            runtime, stream, "t" + std::to_string(t), DataType::kFloat32,
            tensors[t]->data(), tensors[t]->count()));
      }
      for (const auto& sum : sums) EXPECT_EQ(sum->Wait().message(), "");
      for (const auto& tensor : tensors) {
        EXPECT_TRUE(tensor->Is(static_cast<float>(round % 7), 1.0f));
      }
      if (reductions == before) continue;
      if (rounds_by_nccl++ == 0) seconds_until_nccl = Microseconds(begin) / 1e6;
    }
    EXPECT_EQ(rounds_by_nccl, 20);
    std::printf("NCCL was ready after %.2f s\n", seconds_until_nccl);
    for (const size_t count : {256, 262'144, 25'600'000}) {
      Tensor tensor(count);
      tensor.Write(0);
      std::vector<double> us;
      for (int round = -5; round < 50; ++round) {
        const auto from = std::chrono::steady_clock::now();
        GpuSum sum(runtime, stream, "timed", DataType::kFloat32, tensor.data(),
                   tensor.count());
        EXPECT_EQ(sum.Wait().message(), "");
        if (round >= 0) us.push_back(Microseconds(from));
      }
      std::printf("%9.3f MB: %7.1f us\n", count * 4 / 1e6, Median(us));
    }
  });
}

}  // namespace
}  // namespace hvd
