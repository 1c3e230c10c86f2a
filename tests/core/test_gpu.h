// SPDX-License-Identifier: Apache-2.0
// TestGpu: a GPU that is made up, CUDA's driver on it, and a framework's
// stream.
#ifndef HVD_TESTS_CORE_TEST_GPU_H_
#define HVD_TESTS_CORE_TEST_GPU_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "fakes/fake_cuda.h"
#include "fakes/fake_gpu.h"
#include "transport/cuda/cuda_device.h"
#include "transport/cuda/cuda_driver.h"
#include "transport/cuda/cuda_mark.h"

namespace hvd {

inline const CudaDriver* FakeDriver() {
  static const CudaDriver driver = CudaDriver::Find(FindFakeCuda).value();
  return &driver;
}

// The driver that is made up looks at none.
inline const void* FakeKernelImage() { return "kernels"; }

// Nothing is done before Step.
class TestGpu {
 public:
  using Ready = std::shared_ptr<const void>;

  FakeGpu& gpu() { return *gpu_; }
  std::shared_ptr<Device> device() { return device_; }
  void Step() { gpu_->Step(); }

  // It comes back when the last pointer goes, before the GPU does.
  std::shared_ptr<void> Allocate(size_t bytes) {
    return {gpu_->Allocate(bytes),
            [gpu = gpu_.get()](void* memory) { gpu->Free(memory); }};
  }

  // The framework's stream does this when it comes to it. It takes long enough
  // for streams that do not wait for it to go on.
  void Compute(std::function<void()> work) {
    gpu_->Queue(stream_, [work = std::move(work), asked = 0]() mutable {
      if (++asked < 2) return false;
      work();
      return true;
    });
  }
  // The framework's stream stops here until `is_open`.
  void ComputeOnce(std::shared_ptr<const bool> is_open) {
    gpu_->Queue(stream_, [is_open = std::move(is_open)] { return *is_open; });
  }
  // What the framework's stream has come to.
  Ready Mark() {
    return MarkStream(FakeDriver(), stream_,
                      [this](size_t bytes) { return NewBuffer(bytes); })
        .value();
  }
  // No more buffers are to be had from now on.
  void RunOutOfBuffers() { has_buffers_ = false; }
  FakeGpu::Stream* framework_stream() { return stream_; }

 private:
  // Memory that the framework's stream still writes, as it does to what a
  // tensor had before.
  std::shared_ptr<void> NewBuffer(size_t bytes) {
    if (!has_buffers_) return nullptr;
    std::shared_ptr<void> buffer = Allocate(bytes);
    Compute([this, buffer, bytes] {
      const std::vector<std::byte> old(bytes, std::byte{0x5a});
      gpu_->Write(buffer.get(), old.data(), bytes);
    });
    return buffer;
  }

  std::atomic<bool> has_buffers_{true};
  const std::unique_ptr<FakeGpu> gpu_ = std::make_unique<FakeGpu>();
  FakeGpu::Stream* const stream_ = gpu_->NewStream();
  const std::shared_ptr<Device> device_ =
      std::make_shared<CudaDevice>(FakeKernelImage());
};

}  // namespace hvd

#endif  // HVD_TESTS_CORE_TEST_GPU_H_
