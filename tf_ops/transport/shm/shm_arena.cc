// SPDX-License-Identifier: Apache-2.0
// Best fit among the free ranges. Ranges that are given back are merged.
#include "transport/shm/shm_arena.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace hvd {
namespace {

constexpr size_t kAlignment = 64;

size_t Aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

ShmArena::ShmArena(std::byte* data, size_t bytes, std::shared_ptr<void> owner)
    : data_(data), bytes_(bytes), owner_(std::move(owner)), free_bytes_(bytes) {
  free_[0] = bytes;
}

StagingBuffer ShmArena::Take(size_t bytes, Urgency urgency) {
  const size_t wanted = Aligned(bytes);
  const size_t kept =
      urgency == Urgency::kCanWait ? (bytes_ - reserved_bytes_) / 4 : 0;
  if (wanted == 0 || wanted + kept > free_bytes_ || is_waited_for_) return {};
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

std::optional<StagingBuffer> ShmArena::Reserve(size_t bytes) {
  const size_t wanted = Aligned(bytes);
  // The longest stretch between reserves.
  size_t longest = 0, end = 0;
  for (const auto& [offset, length] : reserved_) {
    longest = std::max(longest, offset - end);
    end = offset + length;
  }
  longest = std::max(longest, bytes_ - end);
  is_waited_for_ = false;
  if (wanted == 0 || wanted > longest) return std::nullopt;
  for (auto range = free_.rbegin(); range != free_.rend(); ++range) {
    if (range->second < wanted) continue;
    const size_t offset = range->first + range->second - wanted;
    range->second -= wanted;
    if (range->second == 0) free_.erase(range->first);
    free_bytes_ -= wanted;
    reserved_[offset] = wanted;
    reserved_bytes_ += wanted;
    return StagingBuffer{std::shared_ptr<std::byte>(owner_, data_ + offset),
                         wanted};
  }
  is_waited_for_ = true;
  return StagingBuffer{};
}

void ShmArena::Give(StagingBuffer buffer) {
  if (buffer.data == nullptr) return;
  const auto offset = static_cast<size_t>(buffer.data.get() - data_);
  if (reserved_.erase(offset) > 0) reserved_bytes_ -= buffer.bytes;
  auto here = free_.emplace(offset, buffer.bytes).first;
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
