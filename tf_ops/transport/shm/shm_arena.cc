// SPDX-License-Identifier: Apache-2.0
// Best fit among the free ranges. Ranges that are given back are merged.
#include "transport/shm/shm_arena.h"

#include <iterator>
#include <utility>

namespace hvd {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

ShmArena::ShmArena(std::byte* data, size_t bytes, std::shared_ptr<void> owner)
    : data_(data), bytes_(bytes), owner_(std::move(owner)), free_bytes_(bytes) {
  free_[0] = bytes;
}

StagingBuffer ShmArena::Take(size_t bytes, Urgency urgency) {
  const size_t wanted = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const size_t kept = urgency == Urgency::kCanWait ? bytes_ / 4 : 0;
  if (wanted == 0 || wanted + kept > free_bytes_) return {};
  auto best = free_.end();
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    if (range->second < wanted) continue;
    if (best == free_.end() || range->second < best->second) best = range;
  }
  if (best == free_.end()) return {};
  const auto [offset, length] = *best;
  free_.erase(best);
  if (length > wanted) free_[offset + wanted] = length - wanted;
  free_bytes_ -= wanted;
  return {std::shared_ptr<std::byte>(owner_, data_ + offset), wanted};
}

void ShmArena::Give(StagingBuffer buffer) {
  if (buffer.data == nullptr) return;
  auto here = free_.emplace(buffer.data.get() - data_, buffer.bytes).first;
  free_bytes_ += buffer.bytes;
  auto next = std::next(here);
  if (next != free_.end() && here->first + here->second == next->first) {
    here->second += next->second;
    free_.erase(next);
  }
  if (here == free_.begin()) return;
  auto before = std::prev(here);
  if (before->first + before->second == here->first) {
    before->second += here->second;
    free_.erase(here);
  }
}

}  // namespace hvd
