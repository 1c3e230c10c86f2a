// SPDX-License-Identifier: Apache-2.0
// FindOffer: asks the owner, the library and the GPU.
#include "transport/device/find_offer.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace hvd {
namespace {

using std::chrono::milliseconds;

// This rank's, by what it was told.
milliseconds TrialLimit(double stall_shutdown_s, milliseconds most) {
  if (stall_shutdown_s <= 0) return most;
  const std::chrono::duration<double> half(stall_shutdown_s / 2);
  if (half >= most) return most;
  return std::chrono::duration_cast<milliseconds>(half);
}

}  // namespace

LaneOffer FindOffer(const LaneOwner& owner, Communicators* communicators,
                    GpuQueue* queue, const std::shared_ptr<const void>& ready,
                    milliseconds most) {
  LaneOffer offer;
  const Result<Communicators::Offer> found = communicators->Look(ready);
  if (!owner.refusal.empty()) {
    offer.Refuse(owner.refusal);
  } else if (!found.ok()) {
    offer.Refuse(found.status().message());
  } else if (const Status opened = queue->OpenStream(ready); !opened.ok()) {
    offer.Refuse(opened.message());
  } else {
    const Status kernels = queue->stream()->CheckKernels();
    offer.has_kernels = 1;
    if (!kernels.ok()) offer.HasNoKernels(kernels.message());
    offer.is_hierarchical = owner.is_hierarchical ? 1 : 0;
    offer.may_share_gpu = owner.may_share_gpu ? 1 : 0;
    offer.trial_limit_ms =
        static_cast<int32_t>(TrialLimit(owner.stall_shutdown_s, most).count());
    offer.version = found.value().version;
    std::memcpy(offer.gpu, found.value().gpu.data(),
                std::min(found.value().gpu.size(), LaneOffer::kGpuBytes));
  }
  return offer;
}

}  // namespace hvd
