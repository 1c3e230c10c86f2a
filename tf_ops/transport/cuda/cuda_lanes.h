// SPDX-License-Identifier: Apache-2.0
// CudaLanes: lanes for tensors on an NVIDIA GPU.
#ifndef HVD_TRANSPORT_CUDA_CUDA_LANES_H_
#define HVD_TRANSPORT_CUDA_CUDA_LANES_H_

#include <memory>

#include "core/doorbell.h"
#include "core/lanes.h"
#include "transport/device/device.h"

namespace hvd {

// All lanes stage in host memory, and share one card.
class CudaLanes final : public DeviceLanes {
 public:
  explicit CudaLanes(std::shared_ptr<Doorbell> doorbell);
  std::unique_ptr<Transport> NewLane(Transport* host) override;

 private:
  const std::shared_ptr<Doorbell> doorbell_;
  const std::shared_ptr<Device> device_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_CUDA_CUDA_LANES_H_
