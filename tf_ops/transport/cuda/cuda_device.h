// SPDX-License-Identifier: Apache-2.0
// CudaDevice: the GPU that a process's tensors are on, by CUDA's driver.
#ifndef HVD_TRANSPORT_CUDA_CUDA_DEVICE_H_
#define HVD_TRANSPORT_CUDA_CUDA_DEVICE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "core/status.h"
#include "transport/cuda/cuda_driver.h"
#include "transport/cuda/cuda_kernels.h"
#include "transport/device/device.h"

namespace hvd {

// The place that a stream of the framework has come to: what Segment::ready
// points to in memory of a GPU. `stream` is a CUstream. It and `driver`
// outlive it. Any thread. Where the stream is null, its context is current.
// `new_buffer` allocates memory of the GPU for it, by any thread, or returns
// null.
using NewBufferOf = std::function<std::shared_ptr<void>(size_t bytes)>;
[[nodiscard]] Result<std::shared_ptr<const void>> MarkStream(
    const CudaDriver* driver, void* stream, NewBufferOf new_buffer = {});

// A GPU that a process uses: the framework's context of it.
struct CudaGpu {
  const CudaDriver* driver;
  CudaContext context;
};

// That of a mark.
[[nodiscard]] CudaGpu GpuOf(const std::shared_ptr<const void>& ready);

// Sixteen bytes that no other GPU has, in this host or another.
[[nodiscard]] Result<std::string> IdentityOf(const CudaGpu& gpu);

// `stream` is of a CudaDevice.
[[nodiscard]] CudaStream StreamOf(const DeviceStream& stream);

// The GPU is that of the first mark: its context, which the framework owns.
// Marks of other GPUs are refused.
class CudaDevice final : public Device {
 public:
  // The kernels of its streams: see CudaKernelImage.
  explicit CudaDevice(const void* kernel_image = CudaKernelImage())
      : kernel_image_(kernel_image) {}

  Result<std::unique_ptr<DeviceStream>> NewStream(
      const std::shared_ptr<const void>& ready) override;
  Result<std::shared_ptr<void>> NewBuffer(
      const std::shared_ptr<const void>& ready, size_t bytes) override;
  Result<std::shared_ptr<void>> NewPinned(size_t bytes) override;

 private:
  const void* const kernel_image_;
  // Driver and context come with the first mark. Null before.
  const CudaDriver* driver_ = nullptr;
  CudaContext context_ = nullptr;
  // All streams of the device share them. The first one loads them.
  std::shared_ptr<const Result<CudaKernels>> kernels_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_CUDA_CUDA_DEVICE_H_
