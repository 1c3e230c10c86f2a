// SPDX-License-Identifier: Apache-2.0
// CudaDevice: the GPU that a process's tensors are on, by CUDA's driver.
#ifndef HVD_TRANSPORT_CUDA_CUDA_DEVICE_H_
#define HVD_TRANSPORT_CUDA_CUDA_DEVICE_H_

#include <cstddef>
#include <memory>

#include "core/status.h"
#include "transport/cuda/cuda_driver.h"
#include "transport/cuda/cuda_kernels.h"
#include "transport/device/device.h"

namespace hvd {

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
