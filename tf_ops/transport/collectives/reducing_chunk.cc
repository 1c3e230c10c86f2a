// SPDX-License-Identifier: Apache-2.0
// Receives one block of each peer.
#include "transport/collectives/reducing_chunk.h"

namespace hvd {

void ReducingChunk::AddContributions(int64_t bytes) {
  contributions_.resize(static_cast<size_t>(work_->size()));
  for (int peer = 0; peer < work_->size(); ++peer) {
    if (peer == work_->rank()) continue;
    contributions_[peer].block = AddArrival(peer, bytes);
  }
}

void ReducingChunk::ReceiveContributions() {
  for (int peer = 0; peer < work_->size(); ++peer) {
    if (peer == work_->rank()) continue;
    Contribution& contribution = contributions_[peer];
    contribution.move = Receive(peer, 0, contribution.block);
    ++missing_;
  }
}

bool ReducingChunk::CollectContributions() {
  bool moved = false;
  for (int peer = 0; peer < work_->size(); ++peer) {
    Contribution& contribution = contributions_[peer];
    if (peer == work_->rank() || contribution.here ||
        !Arrive(contribution.move, &contribution.block)) {
      continue;
    }
    contribution.here = true;
    contribution.poison = Read(contribution.block);
    --missing_;
    moved = true;
  }
  return moved;
}

Poison ReducingChunk::ContributedPoison() const {
  // By now a peer's poison has become that of the batch, unless it had one
  // before.
  for (int peer = 0; peer < work_->size(); ++peer) {
    const Poison& poison =
        peer == work_->rank() ? work_->poison() : contributions_[peer].poison;
    if (poison) return poison;
  }
  return {};
}

Contributions ReducingChunk::Contributed(const SegmentMap& map, int64_t begin,
                                         int64_t end) const {
  Contributions all{map, begin, end, {}, work_->rank()};
  for (int peer = 0; peer < work_->size(); ++peer) {
    all.blocks.push_back(
        peer == work_->rank() ? nullptr : Content(contributions_[peer].block));
  }
  return all;
}

void ReducingChunk::ReleaseContributions() {
  for (int peer = 0; peer < work_->size(); ++peer) {
    if (peer == work_->rank()) continue;
    Release(contributions_[peer].move, &contributions_[peer].block);
  }
}

}  // namespace hvd
