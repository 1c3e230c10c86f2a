// SPDX-License-Identifier: Apache-2.0
// Sums of tensors on a real GPU, staged on the host. Ranks are threads, which
// share the GPU.
//
// Needs a GPU, and no TensorFlow. Exits with 77 where there is none.
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpu/elementwise.h"
#include "gpu_call.h"
#include "harness.h"
#include "run_ranks.h"
#include "thread_world.h"
#include "transport/cuda/cuda_lanes.h"

namespace hvd {
namespace {

// Long enough for a lane that does not wait for it to read old values.
constexpr int64_t kLateNs = 3'000'000;

// Element i becomes `first` + i % 13, after a while.
__global__ void WriteLate(float* memory, int64_t elements, float first) {
  int64_t began = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - began < kLateNs);
  const int64_t thread =
      static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64_t i = thread; i < elements; i += gridDim.x * blockDim.x) {
    memory[i] = first + static_cast<float>(i % 13);
  }
}

// Memory of the GPU. Starts as NaN.
class DeviceFloats {
 public:
  explicit DeviceFloats(int64_t elements) : elements_(elements) {
    CheckCuda(cudaMalloc(&data_, Bytes() + 1));
    CheckCuda(cudaMemset(data_, 0xff, Bytes()));
    CheckCuda(cudaDeviceSynchronize());
  }
  ~DeviceFloats() { (void)cudaFree(data_); }
  DeviceFloats(const DeviceFloats&) = delete;
  DeviceFloats& operator=(const DeviceFloats&) = delete;

  float* data() const { return static_cast<float*>(data_); }
  int64_t elements() const { return elements_; }
  std::vector<float> Read() const {
    std::vector<float> values(static_cast<size_t>(elements_));
    CheckCuda(
        cudaMemcpy(values.data(), data_, Bytes(), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  size_t Bytes() const {
    return static_cast<size_t>(elements_) * sizeof(float);
  }

  const int64_t elements_;
  void* data_ = nullptr;
};

void RunOnGpu(int size, const std::function<void(int, Runtime*)>& body) {
  NeedGpu();
  ThreadWorld world(size);
  RunRanks(size, [&](int rank) {
    auto backend = world.Open(rank);
    auto lanes = std::make_unique<CudaLanes>(backend->doorbell());
    Runtime runtime(std::move(backend), Options::Defaults(), std::move(lanes));
    EXPECT_EQ(runtime.Start({}).message(), "");
    body(rank, &runtime);
    runtime.Stop();
  });
}

// Sums of what kernels are still writing when the sums are asked for.
void CheckSums(int size, const std::vector<int64_t>& elements, int steps) {
  RunOnGpu(size, [&](int rank, Runtime* runtime) {
    const FrameworkStream stream;
    std::vector<std::unique_ptr<DeviceFloats>> tensors;
    for (const int64_t count : elements) {
      tensors.push_back(std::make_unique<DeviceFloats>(count));
    }
    for (int step = 0; step < steps; ++step) {
      std::vector<std::unique_ptr<GpuSum>> sums;
      // Each rank in an order of its own.
      for (size_t i = 0; i < tensors.size(); ++i) {
        const size_t t = (i + static_cast<size_t>(rank)) % tensors.size();
        const DeviceFloats& tensor = *tensors[t];
        WriteLate<<<8, 256, 0, stream.get()>>>(tensor.data(), tensor.elements(),
                                               static_cast<float>(rank + step));
        CheckCuda(cudaGetLastError());
        sums.push_back(std::make_unique<GpuSum>(
            runtime, stream, "t" + std::to_string(t), DataType::kFloat32,
            tensor.data(), tensor.elements()));
      }
      for (auto& sum : sums) EXPECT_EQ(sum->Wait().message(), "");
      const float base =
          static_cast<float>(size * (size - 1) / 2 + size * step);
      for (const auto& tensor : tensors) {
        const std::vector<float> found = tensor->Read();
        int64_t wrong = 0;
        for (size_t i = 0; i < found.size(); ++i) {
          wrong += found[i] != base + static_cast<float>(size * (i % 13));
        }
        EXPECT_EQ(wrong, 0);
      }
    }
  });
}

TEST(small_tensors_wait_for_their_kernels) {
  for (const int size : {1, 2, 3}) CheckSums(size, {0, 1, 7, 1000, 4097}, 10);
}

// These are cut into pieces.
TEST(large_tensors_wait_for_their_kernels) {
  for (const int size : {2, 4}) CheckSums(size, {9'000'001, 3, 5'000'000}, 3);
}

TEST(halves_are_summed_as_on_the_host) {
  RunOnGpu(2, [](int rank, Runtime* runtime) {
    for (const DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
      const FrameworkStream stream;
      const size_t count = 70'001;
      std::vector<float> mine(count), expected(count), sum(count);
      for (size_t i = 0; i < count; ++i) {
        mine[i] = static_cast<float>(i % 97) + static_cast<float>(rank);
        expected[i] = 2.0f * static_cast<float>(i % 97) + 1.0f;
      }
      std::vector<uint16_t> halves(count);
      Pack(DataType::kFloat32, type, mine.data(), halves.data(), count, 1.0);
      void* memory = nullptr;
      CheckCuda(cudaMalloc(&memory, count * 2));
      CheckCuda(
          cudaMemcpy(memory, halves.data(), count * 2, cudaMemcpyHostToDevice));
      // A copy of memory that is not pinned may still be under way.
      CheckCuda(cudaDeviceSynchronize());
      GpuSum call(runtime, stream, "halves", type, memory, count);
      EXPECT_EQ(call.Wait().message(), "");
      CheckCuda(
          cudaMemcpy(halves.data(), memory, count * 2, cudaMemcpyDeviceToHost));
      CheckCuda(cudaFree(memory));
      Unpack(type, DataType::kFloat32, halves.data(), sum.data(), count);
      EXPECT_TRUE(sum == expected);
    }
  });
}

}  // namespace
}  // namespace hvd
