// SPDX-License-Identifier: Apache-2.0
// Each move uses one of two wires. The lowest bit of its id says which.
#include "transport/shm/two_level_wire.h"

#include <utility>

namespace hvd {
namespace {

constexpr MoveId kAcross = 1;

bool IsAcross(MoveId id) { return (id & kAcross) != 0; }
MoveId Within(MoveId id) { return id << 1; }
MoveId Across(MoveId id) { return id << 1 | kAcross; }
MoveId Below(MoveId id) { return id >> 1; }

}  // namespace

TwoLevelWire::TwoLevelWire(std::shared_ptr<ShmEndpoint> endpoint, int slot,
                           HostMap hosts, std::vector<int> local_ranks,
                           std::unique_ptr<Wire> across, StagingBuffer reserve)
    : endpoint_(std::move(endpoint)),
      slot_(static_cast<uint32_t>(slot)),
      hosts_(std::move(hosts)),
      local_ranks_(std::move(local_ranks)),
      across_(std::move(across)),
      staging_(std::make_unique<ShmSetStaging>(&endpoint_->arena(),
                                               std::move(reserve))) {
  endpoint_->Open(slot_);
}

TwoLevelWire::~TwoLevelWire() {
  endpoint_->Close(slot_, std::move(abandoned_));
}

MoveId TwoLevelWire::Send(int peer, uint32_t tag, const void* data,
                          size_t bytes) {
  if (!zero_copy(peer)) return Across(across_->Send(peer, tag, data, bytes));
  return Within(
      endpoint_->Send(local_ranks_[peer], ShmTag(slot_, tag), data, bytes));
}

MoveId TwoLevelWire::Receive(int peer, uint32_t tag, void* data, size_t bytes) {
  if (!zero_copy(peer)) return Across(across_->Receive(peer, tag, data, bytes));
  return Within(endpoint_->Receive(local_ranks_[peer], ShmTag(slot_, tag)));
}

void TwoLevelWire::Poll() {
  endpoint_->Poll();
  across_->Poll();
}

bool TwoLevelWire::Test(MoveId id) {
  return IsAcross(id) ? across_->Test(Below(id)) : endpoint_->Test(Below(id));
}

Borrowed TwoLevelWire::Arrived(MoveId id) const {
  return endpoint_->Arrived(Below(id));
}

void TwoLevelWire::Release(MoveId id) { endpoint_->Release(Below(id)); }

Status TwoLevelWire::status() const {
  return endpoint_->status().ok() ? across_->status() : endpoint_->status();
}

void TwoLevelWire::Abandon(std::vector<StagingBuffer> memory) {
  // Moves of both wires may still use it. It goes back to the arena when
  // neither wire holds it.
  std::vector<StagingBuffer> held;
  const std::shared_ptr<void> hold = HoldMemory(endpoint_, memory);
  for (const StagingBuffer& buffer : memory) {
    held.push_back(
        {std::shared_ptr<std::byte>(hold, buffer.data.get()), buffer.bytes});
  }
  across_->Abandon(std::move(held));
  abandoned_ = hold;
}

}  // namespace hvd
