// SPDX-License-Identifier: Apache-2.0
// FindOffer: what a rank can offer for a lane whose GPUs work among themselves.
#ifndef HVD_TRANSPORT_DEVICE_FIND_OFFER_H_
#define HVD_TRANSPORT_DEVICE_FIND_OFFER_H_

#include <chrono>
#include <memory>

#include "core/lanes.h"
#include "transport/device/communicator.h"
#include "transport/device/gpu_queue.h"
#include "transport/device/lane_offer.h"

namespace hvd {

// `ready` is of the GPU: see Segment::ready. Opens the queue's stream on it. A
// trial has `most` time, and no longer than half of what ends the job as a
// stall: other sets' batches wait behind it on the GPU.
[[nodiscard]] LaneOffer FindOffer(const LaneOwner& owner,
                                  Communicators* communicators, GpuQueue* queue,
                                  const std::shared_ptr<const void>& ready,
                                  std::chrono::milliseconds most);

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_FIND_OFFER_H_
