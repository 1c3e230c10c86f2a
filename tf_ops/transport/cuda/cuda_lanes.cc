// SPDX-License-Identifier: Apache-2.0
// Makes a HostStaging for each set.
#include "transport/cuda/cuda_lanes.h"

#include <utility>

#include "transport/cuda/cuda_device.h"
#include "transport/device/host_staging.h"

namespace hvd {

CudaLanes::CudaLanes(std::shared_ptr<Doorbell> doorbell)
    : doorbell_(std::move(doorbell)), device_(std::make_shared<CudaDevice>()) {}

std::unique_ptr<Transport> CudaLanes::NewLane(Transport* host) {
  return std::make_unique<HostStaging>(
      host, device_, [doorbell = doorbell_] { doorbell->Ring(); });
}

}  // namespace hvd
