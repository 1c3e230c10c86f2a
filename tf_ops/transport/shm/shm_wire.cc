// SPDX-License-Identifier: Apache-2.0
// Adds the set's slot to the tags, for the rank's endpoint.
#include "transport/shm/shm_wire.h"

#include <utility>

namespace hvd {

ShmSetStaging::ShmSetStaging(ShmArena* arena, StagingBuffer reserve)
    : arena_(arena), reserve_(std::move(reserve)) {}

ShmSetStaging::~ShmSetStaging() {
  if (!reserve_is_taken_) arena_->Give(std::move(reserve_));
}

StagingBuffer ShmSetStaging::Take(size_t bytes, Urgency urgency) {
  StagingBuffer buffer = arena_->Take(bytes, urgency);
  const bool may_have_reserve =
      urgency == Urgency::kOldest && !reserve_is_taken_;
  if (buffer.data != nullptr || !may_have_reserve || bytes > reserve_.bytes) {
    return buffer;
  }
  reserve_is_taken_ = true;
  return reserve_;
}

void ShmSetStaging::Give(StagingBuffer buffer) {
  if (buffer.data == reserve_.data) {
    reserve_is_taken_ = false;
  } else {
    arena_->Give(std::move(buffer));
  }
}

ShmWire::ShmWire(std::shared_ptr<ShmEndpoint> endpoint, int slot,
                 std::vector<int> ranks, int rank, StagingBuffer reserve)
    : endpoint_(std::move(endpoint)),
      slot_(static_cast<uint32_t>(slot)),
      ranks_(std::move(ranks)),
      rank_(rank),
      hosts_(OneHost(static_cast<int>(ranks_.size()))),
      staging_(std::make_unique<ShmSetStaging>(&endpoint_->arena(),
                                               std::move(reserve))) {
  endpoint_->Open(slot_);
}

ShmWire::~ShmWire() { endpoint_->Close(slot_, std::move(abandoned_)); }

MoveId ShmWire::Send(int peer, uint32_t tag, const void* data, size_t bytes) {
  return endpoint_->Send(ranks_[peer], ShmTag(slot_, tag), data, bytes);
}

MoveId ShmWire::Receive(int peer, uint32_t tag, void*, size_t) {
  return endpoint_->Receive(ranks_[peer], ShmTag(slot_, tag));
}

void ShmWire::Abandon(std::vector<StagingBuffer> memory) {
  abandoned_ = HoldMemory(endpoint_, std::move(memory));
}

}  // namespace hvd
