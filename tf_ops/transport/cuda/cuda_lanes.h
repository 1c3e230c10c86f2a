// SPDX-License-Identifier: Apache-2.0
// CudaLanes: lanes for tensors on an NVIDIA GPU.
#ifndef HVD_TRANSPORT_CUDA_CUDA_LANES_H_
#define HVD_TRANSPORT_CUDA_CUDA_LANES_H_

#include <chrono>
#include <memory>

#include "core/doorbell.h"
#include "core/lanes.h"
#include "transport/cuda/cuda_kernels.h"
#include "transport/cuda/nccl_communicator.h"
#include "transport/device/device.h"
#include "transport/device/gpu_queue.h"

namespace hvd {

// All lanes share one GPU, and each set has a communicator of NCCL of its own
// where it can be had.
//
// Many hosts take NCCL a minute. Longer than that it mostly waits for a host
// that it cannot reach.
class CudaLanes final : public DeviceLanes {
 public:
  static constexpr std::chrono::minutes kConnectLimit{2};

  explicit CudaLanes(std::shared_ptr<Doorbell> doorbell,
                     NcclCommunicators::Find find = &NcclLibrary::OfMachine,
                     std::chrono::milliseconds connect_limit = kConnectLimit,
                     const void* kernel_image = CudaKernelImage());
  std::unique_ptr<Transport> NewLane(Transport* host, LaneOwner owner) override;

 private:
  const std::shared_ptr<Doorbell> doorbell_;
  const NcclCommunicators::Find find_;
  const std::chrono::milliseconds connect_limit_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<GpuQueue> queue_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_CUDA_CUDA_LANES_H_
