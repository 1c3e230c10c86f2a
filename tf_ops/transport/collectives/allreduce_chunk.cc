// SPDX-License-Identifier: Apache-2.0
// Allreduce: all to all for small chunks, by shards for large ones.
//
// Both reduce every element from the ranks' blocks in rank order. So the result
// does not depend on the way, the chunk or the owner.
#include <algorithm>
#include <utility>

#include "transport/collectives/chunk.h"
#include "transport/collectives/range.h"

namespace hvd {
namespace {

// Up to this size one round of P * (P - 1) messages is faster than two rounds
// of shards.
constexpr int64_t kOneRoundBytes = 4096;
constexpr int kOneRoundRanks = 8;

// Gathers the peers' blocks of one range, and reduces them together with this
// rank's own data.
class AllreduceChunk : public Chunk {
 public:
  AllreduceChunk(BatchWork* work, int64_t index)
      : Chunk(work, index), range_(ChunkRange(*work, index)) {}

 protected:
  // The block of a peer. This rank's own stays empty, because its data is in
  // the user's memory.
  struct Contribution {
    Block block;
    MoveId move = 0;
    bool here = false;
    Poison poison;
  };

  int64_t BytesOf(const Range& range) const {
    return (range.end - range.begin) * work_->element_bytes();
  }

  void AddContributions(const Range& range) {
    contributions_.resize(work_->size());
    for (int peer = 0; peer < work_->size(); ++peer) {
      if (peer == work_->rank()) continue;
      contributions_[peer].block = AddArrival(peer, BytesOf(range));
    }
  }

  void ReceiveContributions() {
    for (int peer = 0; peer < work_->size(); ++peer) {
      if (peer == work_->rank()) continue;
      Contribution& contribution = contributions_[peer];
      contribution.move = Receive(peer, 0, contribution.block);
      ++missing_;
    }
  }

  // True if anything arrived.
  bool CollectContributions() {
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

  bool all_here() const { return missing_ == 0; }

  // Reduces the range into the user's memory. If `result` is not null, it gets
  // the same data. If any rank sent poison, it gets poison.
  void Reduce(const Range& range, const Block* result) {
    // By now a peer's poison has become that of the batch, unless it had one
    // before.
    Poison poison;
    std::vector<const std::byte*> blocks;
    for (int peer = 0; peer < work_->size(); ++peer) {
      const Contribution& contribution = contributions_[peer];
      const bool is_own = peer == work_->rank();
      if (!poison) poison = is_own ? work_->poison() : contribution.poison;
      blocks.push_back(is_own ? nullptr : Content(contribution.block));
    }
    if (!poison) {
      work_->Reduce(range.begin, range.end, blocks,
                    result != nullptr ? Payload(*result) : nullptr);
      poison = work_->FailIfNotFinite();
    }
    if (result != nullptr) Label(*result, poison);
    for (int peer = 0; peer < work_->size(); ++peer) {
      if (peer == work_->rank()) continue;
      Release(contributions_[peer].move, &contributions_[peer].block);
    }
  }

  const Range range_;  // of the chunk

 private:
  std::vector<Contribution> contributions_;  // by rank
  int missing_ = 0;
};

// Every rank sends its block to all, and reduces all blocks itself.
class OneRoundChunk final : public AllreduceChunk {
 public:
  OneRoundChunk(BatchWork* work, int64_t index) : AllreduceChunk(work, index) {
    AddContributions(range_);
    sent_ = AddBlock(BytesOf(range_));
  }

  bool Advance() override {
    bool moved = CollectContributions();
    moved |= Sweep(&sends_);
    if (!output_done_ && all_here()) {
      Reduce(range_, nullptr);
      output_done_ = true;
      moved = true;
    }
    finished_ = output_done_ && sends_.empty();
    return moved;
  }

 protected:
  void Post() override {
    ReceiveContributions();
    PackBlock(sent_, range_.begin, range_.end);
    for (int peer = 0; peer < work_->size(); ++peer) {
      if (peer != work_->rank()) sends_.push_back(Send(peer, 0, sent_));
    }
  }

 private:
  Block sent_;
  std::vector<MoveId> sends_;
};

// Every rank owns a shard. It gets that shard from all ranks, and sends the
// result back.
class ByShardsChunk final : public AllreduceChunk {
 public:
  ByShardsChunk(BatchWork* work, int64_t index) : AllreduceChunk(work, index) {
    shards_.resize(work->size());
    for (int owner = 0; owner < work->size(); ++owner) {
      Shard& shard = shards_[owner];
      shard.range = ShardOf(range_, owner, work->size());
      if (shard.range.empty()) continue;
      const int64_t bytes = BytesOf(shard.range);
      shard.block = AddBlock(bytes);
      // Without zero-copy, the result arrives where the data was sent from.
      shard.result = zero_copy(owner) ? AddArrival(owner, bytes) : shard.block;
    }
    if (!own().empty()) AddContributions(own());
  }

  bool Advance() override {
    bool moved = AdvanceOwn();
    for (int owner = 0; owner < work_->size(); ++owner) {
      moved |= AdvanceShard(owner);
    }
    moved |= Sweep(&result_sends_);
    output_done_ = open_shards_ == 0;
    finished_ = output_done_ && open_sends_ == 0 && result_sends_.empty();
    return moved;
  }

 protected:
  void Post() override {
    // It begins with the rank after this one, so that not all ranks send to the
    // same one first. This rank's own shard comes last.
    for (int i = 1; i <= work_->size(); ++i) {
      const int owner = (work_->rank() + i) % work_->size();
      Shard& shard = shards_[owner];
      if (shard.range.empty()) continue;
      ++open_shards_;
      if (owner == work_->rank()) {
        ReceiveContributions();
        continue;
      }
      PackBlock(shard.block, shard.range.begin, shard.range.end);
      shard.send = Send(owner, 0, shard.block);
      shard.sending = true;
      ++open_sends_;
      if (zero_copy(owner)) PostResult(owner);
    }
  }

 private:
  // One owner's shard of the chunk. This rank's data goes there, and the result
  // comes back. The shard that this rank owns has one block, for the result.
  struct Shard {
    Range range;
    Block block;
    Block result;
    bool sending = false;
    bool receiving = false;
    MoveId send = 0;
    MoveId receive = 0;
  };

  const Range& own() { return shards_[work_->rank()].range; }
  const Block& own_block() { return shards_[work_->rank()].block; }

  bool AdvanceOwn() {
    if (own_done_ || own().empty()) return false;
    const bool moved = CollectContributions();
    if (!all_here()) return moved;
    Reduce(own(), &own_block());
    for (int peer = 0; peer < work_->size(); ++peer) {
      if (peer == work_->rank()) continue;
      result_sends_.push_back(Send(peer, 1, own_block()));
    }
    own_done_ = true;
    --open_shards_;
    return true;
  }

  void PostResult(int owner) {
    Shard& shard = shards_[owner];
    shard.receive = Receive(owner, 1, shard.result);
    shard.receiving = true;
  }

  bool AdvanceShard(int owner) {
    Shard& shard = shards_[owner];
    bool moved = false;
    if (shard.sending && Test(shard.send)) {
      shard.sending = false;
      --open_sends_;
      if (!zero_copy(owner)) PostResult(owner);
      moved = true;
    }
    if (!shard.receiving || !Arrive(shard.receive, &shard.result)) return moved;
    if (!Read(shard.result)) {
      UnpackBlock(shard.result, work_->rank(), shard.range.begin,
                  shard.range.end);
    }
    Release(shard.receive, &shard.result);
    shard.receiving = false;
    --open_shards_;
    return true;
  }

  std::vector<Shard> shards_;  // by owner
  std::vector<MoveId> result_sends_;
  int open_shards_ = 0;
  int open_sends_ = 0;
  bool own_done_ = false;
};

}  // namespace

std::unique_ptr<Chunk> NewAllreduceChunk(BatchWork* work, int64_t index) {
  const Range range = ChunkRange(*work, index);
  const int64_t bytes = (range.end - range.begin) * work->element_bytes();
  // Without elements no rank owns a shard, but ranks must still hear of each
  // other.
  if (range.empty()) return std::make_unique<OneRoundChunk>(work, index);
  // This holds for every size, so that the order of additions does not depend
  // on the size.
  if (work->wire()->hosts().has_two_levels()) {
    return NewTwoLevelAllreduceChunk(work, index);
  }
  if (bytes <= kOneRoundBytes && work->size() <= kOneRoundRanks) {
    return std::make_unique<OneRoundChunk>(work, index);
  }
  return std::make_unique<ByShardsChunk>(work, index);
}

}  // namespace hvd
