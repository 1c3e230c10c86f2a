// SPDX-License-Identifier: Apache-2.0
// The layout: doorbells, then the pairs' rings, then the arenas.
#include "transport/shm/shm_host.h"

#include <utility>

namespace hvd {
namespace {

constexpr size_t kPageBytes = 4096;
// Limits the memory of a rank's rings, so that rings stay small however many
// ranks a host has.
constexpr size_t kMessageBytesPerRank = 1 << 20;
constexpr size_t kMoveBytesPerRank = 1 << 18;
constexpr size_t kLargestMessageRing = 1 << 16;
constexpr size_t kLargestMoveRing = 1 << 14;
constexpr size_t kSmallestRing = 1 << 12;

size_t RoundUp(size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

size_t RingBytes(size_t largest, size_t per_rank, int ranks) {
  size_t bytes = largest;
  while (bytes > kSmallestRing && bytes * static_cast<size_t>(ranks) > per_rank)
    bytes /= 2;
  return bytes;
}

size_t MessageBytes(int ranks) {
  return RingBytes(kLargestMessageRing, kMessageBytesPerRank, ranks);
}

size_t MoveBytes(int ranks) {
  return RingBytes(kLargestMoveRing, kMoveBytesPerRank, ranks);
}

size_t PairBytes(int ranks) {
  return 2 * sizeof(ShmRingHead) + MessageBytes(ranks) + MoveBytes(ranks);
}

size_t DoorbellBytes(int ranks) {
  return RoundUp(static_cast<size_t>(ranks) * sizeof(DoorbellWord));
}

size_t ArenasBegin(int ranks) {
  const size_t pairs = static_cast<size_t>(ranks) * static_cast<size_t>(ranks);
  return DoorbellBytes(ranks) + RoundUp(pairs * PairBytes(ranks));
}

}  // namespace

size_t ShmHost::BytesFor(int ranks, size_t arena_bytes) {
  return ArenasBegin(ranks) + static_cast<size_t>(ranks) * arena_bytes;
}

ShmHost::ShmHost(std::shared_ptr<ShmSegment> segment, int ranks,
                 size_t arena_bytes)
    : segment_(std::move(segment)), ranks_(ranks), arena_bytes_(arena_bytes) {}

DoorbellWord* ShmHost::doorbell(int rank) const {
  return reinterpret_cast<DoorbellWord*>(segment_->data()) + rank;
}

std::byte* ShmHost::PairAt(int from, int to) const {
  const size_t pair = static_cast<size_t>(from) * static_cast<size_t>(ranks_) +
                      static_cast<size_t>(to);
  return segment_->data() + DoorbellBytes(ranks_) + pair * PairBytes(ranks_);
}

ShmRing ShmHost::messages(int from, int to) const {
  std::byte* const pair = PairAt(from, to);
  return ShmRing(reinterpret_cast<ShmRingHead*>(pair),
                 pair + 2 * sizeof(ShmRingHead), MessageBytes(ranks_));
}

ShmRing ShmHost::moves(int from, int to) const {
  std::byte* const pair = PairAt(from, to);
  return ShmRing(reinterpret_cast<ShmRingHead*>(pair) + 1,
                 pair + 2 * sizeof(ShmRingHead) + MessageBytes(ranks_),
                 MoveBytes(ranks_));
}

std::byte* ShmHost::arena(int rank) const {
  return segment_->data() + ArenasBegin(ranks_) +
         static_cast<size_t>(rank) * arena_bytes_;
}

}  // namespace hvd
