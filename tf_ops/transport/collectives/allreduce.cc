// SPDX-License-Identifier: Apache-2.0
// Allreduce: all to all for small chunks, by shards for large ones.
//
// Both reduce every element from the ranks' blocks in rank order. So the result
// does not depend on the way, the chunk or the owner.
#include <utility>

#include "transport/collectives/allreduce_phase.h"
#include "transport/collectives/reducing_chunk.h"

namespace hvd {
namespace {

// Up to this size one round of P * (P - 1) messages is faster than two rounds
// of shards.
constexpr int64_t kOneRoundBytes = 4096;
constexpr int kOneRoundRanks = 8;

// Reduces the peers' blocks together with this rank's own data.
class AllreduceChunk : public ReducingChunk {
 public:
  AllreduceChunk(AllreducePhase* phase, int64_t index)
      : ReducingChunk(phase, index),
        allreduce_(phase),
        range_(phase->RangeOf(index)) {}

 protected:
  int64_t BytesOf(const Range& range) const {
    return allreduce_->BytesOf(range);
  }
  const SegmentMap& map() const { return allreduce_->map(); }

  // Reduces the range into the outputs. If `result` is not null, it gets the
  // same data. If any rank sent poison, it gets poison.
  void Reduce(const Range& range, const Block* result) {
    Poison poison = ContributedPoison();
    if (!poison) {
      phase_->reducer().Reduce(
          Contributed(map(), range.begin, range.end),
          {map(), result != nullptr ? Payload(*result) : nullptr});
      poison = phase_->FailIfNotFinite();
    }
    if (result != nullptr) Label(*result, poison);
    ReleaseContributions();
  }

  AllreducePhase* const allreduce_;
  const Range range_;  // of the chunk
};

// Every rank sends its block to all, and reduces all blocks itself.
class OneRoundChunk final : public AllreduceChunk {
 public:
  OneRoundChunk(AllreducePhase* phase, int64_t index)
      : AllreduceChunk(phase, index) {
    AddContributions(BytesOf(range_));
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
    PackBlock(sent_, map(), range_.begin, range_.end);
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
  ByShardsChunk(AllreducePhase* phase, int64_t index)
      : AllreduceChunk(phase, index) {
    shards_.resize(static_cast<size_t>(work_->size()));
    for (int owner = 0; owner < work_->size(); ++owner) {
      Shard& shard = shards_[owner];
      shard.range = ShardOf(range_, owner, work_->size());
      if (shard.range.empty()) continue;
      const int64_t bytes = BytesOf(shard.range);
      shard.block = AddBlock(bytes);
      // Without zero-copy, the result arrives where the data was sent from.
      shard.result = zero_copy(owner) ? AddArrival(owner, bytes) : shard.block;
    }
    if (!own().empty()) AddContributions(BytesOf(own()));
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
    // The loop begins with the rank after this one, so that not all ranks send
    // to the same one first. This rank's own shard comes last.
    for (int i = 1; i <= work_->size(); ++i) {
      const int owner = (work_->rank() + i) % work_->size();
      Shard& shard = shards_[owner];
      if (shard.range.empty()) continue;
      ++open_shards_;
      if (owner == work_->rank()) {
        ReceiveContributions();
        continue;
      }
      PackBlock(shard.block, map(), shard.range.begin, shard.range.end);
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
      UnpackBlock(shard.result, map(), shard.range.begin, shard.range.end);
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

AllreducePhase::AllreducePhase(BatchWork* work, const Operands& operands,
                               Next next)
    : Phase(work, ForHosts(operands, work->hosts()), hvd::BytesOf(operands),
            std::move(next)),
      map_(CountsOf(packer().operands().segments)),
      plan_(map_.total(), element_bytes(), work->chunk_bytes()) {}

std::unique_ptr<Chunk> AllreducePhase::NewChunk(int64_t index) {
  const Range range = RangeOf(index);
  // Without elements no rank owns a shard, but ranks must still hear of each
  // other.
  if (range.empty()) return std::make_unique<OneRoundChunk>(this, index);
  // This holds for every size, so that the order of additions does not depend
  // on the size.
  if (hosts().has_two_levels()) return NewTwoLevelAllreduceChunk(this, index);
  if (BytesOf(range) <= kOneRoundBytes && work()->size() <= kOneRoundRanks) {
    return std::make_unique<OneRoundChunk>(this, index);
  }
  return std::make_unique<ByShardsChunk>(this, index);
}

std::unique_ptr<Phase> NewAllreducePhase(BatchWork* work, Operands operands,
                                         Phase::Next next) {
  return std::make_unique<AllreducePhase>(work, operands, std::move(next));
}

std::unique_ptr<Phase> NewAllreduceFirstPhase(BatchWork* work) {
  if (work->batch().reduce_op == ReduceOp::kAdasum) {
    return NewAdasumFirstPhase(work);
  }
  return NewAllreducePhase(work, ReducedOperands(work->batch()), {});
}

}  // namespace hvd
