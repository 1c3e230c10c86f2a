// SPDX-License-Identifier: Apache-2.0
// Makes a lane for each set.
#include "transport/cuda/cuda_lanes.h"

#include <utility>

#include "transport/cuda/cuda_device.h"
#include "transport/device/direct_lane.h"

namespace hvd {

CudaLanes::CudaLanes(std::shared_ptr<Doorbell> doorbell,
                     NcclCommunicators::Find find,
                     std::chrono::milliseconds connect_limit,
                     const void* kernel_image)
    : doorbell_(std::move(doorbell)),
      find_(std::move(find)),
      connect_limit_(connect_limit),
      device_(std::make_shared<CudaDevice>(kernel_image)),
      queue_(std::make_shared<GpuQueue>(device_)) {}

std::unique_ptr<Transport> CudaLanes::NewLane(Transport* host,
                                              LaneOwner owner) {
  return std::make_unique<DirectLane>(
      host, device_, queue_, std::make_unique<NcclCommunicators>(find_),
      [doorbell = doorbell_] { doorbell->Ring(); }, std::move(owner),
      connect_limit_);
}

}  // namespace hvd
