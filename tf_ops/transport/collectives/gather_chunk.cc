// SPDX-License-Identifier: Apache-2.0
// Sends, receives and relays one block of each rank.
#include "transport/collectives/gather_chunk.h"

#include <algorithm>

namespace hvd {

int64_t GatheredBlockBytes(const BatchWork& work) {
  return std::min(work.chunk_bytes(), std::max(work.chunk_bytes() / work.size(),
                                               kSmallestGatherChunkBytes));
}

GatherChunk::GatherChunk(Phase* phase, int64_t index)
    : Chunk(phase, index), host_(hosts().host[work_->rank()]) {
  contributions_.reserve(static_cast<size_t>(work_->size()));
}

void GatherChunk::AddContribution(int64_t bytes) {
  const auto origin = static_cast<int>(contributions_.size());
  Contribution& contribution = contributions_.emplace_back();
  contribution.exists = bytes > 0 || index_ == 0;
  if (!contribution.exists) return;
  contribution.block = origin == work_->rank()
                           ? AddBlock(bytes)
                           : AddArrival(SenderOf(origin), bytes);
}

bool GatherChunk::Advance() {
  bool moved = Sweep(&sends_);
  for (int origin = 0; origin < work_->size(); ++origin) {
    Contribution& contribution = contributions_[origin];
    if (!contribution.awaited ||
        !Arrive(contribution.move, &contribution.block))
      continue;
    Arrived(origin);
    moved = true;
  }
  PassOn();
  if (missing_ == 0 && !output_done_) Complete();
  finished_ = output_done_ && sends_.empty();
  return moved;
}

void GatherChunk::Arrived(int origin) {
  Contribution& contribution = contributions_[origin];
  contribution.awaited = false;
  --missing_;
  const Poison poison = Read(contribution.block);
  // Bytes that made no sense have become poison.
  if (IsRelayed(origin)) Label(contribution.block, poison);
  contribution.kept = !poison && !Take(origin, contribution.block);
  if (!contribution.kept) Release(contribution.move, &contribution.block);
}

void GatherChunk::Complete() {
  Finish();
  for (Contribution& contribution : contributions_) {
    if (contribution.kept) Release(contribution.move, &contribution.block);
  }
  output_done_ = true;
}

void GatherChunk::Post() {
  const int rank = work_->rank();
  for (int origin = 0; origin < work_->size(); ++origin) {
    Contribution& contribution = contributions_[origin];
    if (!contribution.exists || origin == rank) continue;
    contribution.move =
        Receive(SenderOf(origin), HopOf(origin), contribution.block);
    contribution.awaited = true;
    ++missing_;
  }
  const Contribution& own = contributions_[rank];
  if (!own.exists) return;
  const bool has_data = PackOwn(own.block);
  for (int i = 1; i < hosts().host_count(); ++i) {
    const int host = (host_ + i) % hosts().host_count();
    sends_.push_back(Send(RelayOf(rank, host), kOwn, own.block));
  }
  SendWithinHost(kOwn, own.block);
  if (has_data) Take(rank, own.block);
}

int GatherChunk::RelayOf(int origin, int host) const {
  const std::vector<int>& ranks = hosts().ranks[host];
  return ranks[static_cast<size_t>(hosts().place[origin]) % ranks.size()];
}

bool GatherChunk::IsRelayed(int origin) const {
  return hosts().host[origin] != host_ &&
         RelayOf(origin, host_) == work_->rank();
}

int GatherChunk::SenderOf(int origin) const {
  const bool direct = hosts().host[origin] == host_ || IsRelayed(origin);
  return direct ? origin : RelayOf(origin, host_);
}

GatherChunk::Hop GatherChunk::HopOf(int origin) const {
  return SenderOf(origin) == origin ? kOwn : kPassedOn;
}

void GatherChunk::SendWithinHost(Hop hop, const Block& block) {
  for (int peer : hosts().ranks[host_]) {
    if (peer != work_->rank()) sends_.push_back(Send(peer, hop, block));
  }
}

void GatherChunk::PassOn() {
  for (; next_relayed_ < work_->size(); ++next_relayed_) {
    const Contribution& contribution = contributions_[next_relayed_];
    if (!contribution.exists || !IsRelayed(next_relayed_)) continue;
    if (contribution.awaited) return;
    SendWithinHost(kPassedOn, contribution.block);
  }
}

}  // namespace hvd
