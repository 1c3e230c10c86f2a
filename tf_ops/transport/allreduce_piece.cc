// SPDX-License-Identifier: Apache-2.0
// Allreduce: all to all where messages count, by parts where bytes count.
//
// Either way every element is reduced from the ranks' blocks in rank order, so
// the result does not depend on the way, the piece or the owner.
#include <algorithm>
#include <utility>

#include "core/elementwise.h"
#include "transport/piece.h"

namespace hvd {
namespace {

// Up to here one round of P * (P - 1) messages beats two rounds of parts.
constexpr int64_t kOneRoundBytes = 4096;
constexpr int kOneRoundRanks = 8;
constexpr int64_t kAlignedElements = 16;

struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  bool empty() const { return begin == end; }
};

Range RangeOf(const BatchWork& work, int64_t index) {
  const int64_t total = work.element_count(work.rank());
  const int64_t begin = std::min(index * work.piece_elements(), total);
  return {begin, std::min(begin + work.piece_elements(), total)};
}

// Gathers the blocks of one range from all ranks, this one's among them, and
// reduces them into `result`.
class AllreducePiece : public Piece {
 public:
  AllreducePiece(BatchWork* work, int64_t index)
      : Piece(work, index), range_(RangeOf(*work, index)) {}

 protected:
  struct Contribution {
    Block block;
    MoveId move = 0;
    bool here = false;
    Poison poison;
  };

  void AddContributions(const Range& range) {
    const int64_t bytes = (range.end - range.begin) * work_->element_bytes();
    contributions_.resize(work_->size());
    for (int peer = 0; peer < work_->size(); ++peer) {
      contributions_[peer].block =
          peer == work_->rank() ? AddBlock(bytes) : AddArrival(bytes);
    }
  }

  const Block& own_block() { return contributions_[work_->rank()].block; }

  // Fills this rank's block and posts the receives for the others'.
  void PostContributions(const Range& range) {
    for (int peer = 0; peer < work_->size(); ++peer) {
      Contribution& contribution = contributions_[peer];
      if (peer == work_->rank()) {
        PackBlock(contribution.block, range.begin, range.end);
        contribution.poison = work_->poison();
        contribution.here = true;
      } else {
        contribution.move = Receive(peer, 0, contribution.block);
        ++missing_;
      }
    }
  }

  // True if anything arrived.
  bool CollectContributions() {
    bool moved = false;
    for (Contribution& contribution : contributions_) {
      if (contribution.here ||
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

  // Into `result`, which may be this rank's own block: the reduced data, or
  // poison when any block was.
  void Reduce(const Range& range, const Block& result) {
    std::vector<const void*> blocks;
    Poison poison;
    for (Contribution& contribution : contributions_) {
      if (!poison) poison = contribution.poison;
      blocks.push_back(Content(contribution.block));
    }
    Label(result, poison);
    if (!poison) {
      const Batch& batch = work_->batch();
      ReduceBlocks(batch.wire_dtype, batch.reduce_op, blocks, Payload(result),
                   range.end - range.begin, batch.postscale);
    }
    for (int peer = 0; peer < work_->size(); ++peer) {
      Contribution& contribution = contributions_[peer];
      if (peer == work_->rank()) continue;
      Release(contribution.move, &contribution.block);
    }
  }

  const Range range_;  // of the piece

 private:
  std::vector<Contribution> contributions_;  // by rank
  int missing_ = 0;
};

// Every rank sends its block to all and reduces all blocks itself.
class OneRoundPiece final : public AllreducePiece {
 public:
  OneRoundPiece(BatchWork* work, int64_t index) : AllreducePiece(work, index) {
    AddContributions(range_);
    // Apart from the block that is sent, which the wire may still read.
    result_ = AddBlock((range_.end - range_.begin) * work->element_bytes());
  }

  bool Advance() override {
    bool moved = CollectContributions();
    moved |= Sweep(&sends_);
    if (!output_done_ && all_here()) {
      Reduce(range_, result_);
      UnpackBlock(result_, work_->rank(), range_.begin, range_.end);
      output_done_ = true;
      moved = true;
    }
    finished_ = output_done_ && sends_.empty();
    return moved;
  }

 protected:
  void Post() override {
    PostContributions(range_);
    for (int peer = 0; peer < work_->size(); ++peer) {
      if (peer != work_->rank()) sends_.push_back(Send(peer, 0, own_block()));
    }
  }

 private:
  Block result_;
  std::vector<MoveId> sends_;
};

// Every rank owns a part: it gets that part of all, and sends the result back.
class ByPartsPiece final : public AllreducePiece {
 public:
  ByPartsPiece(BatchWork* work, int64_t index) : AllreducePiece(work, index) {
    parts_.resize(work->size());
    for (int owner = 0; owner < work->size(); ++owner) {
      Part& part = parts_[owner];
      part.range = PartOf(owner);
      if (owner == work->rank() || part.range.empty()) continue;
      const int64_t bytes =
          (part.range.end - part.range.begin) * work->element_bytes();
      part.block = AddBlock(bytes);
      // Without lending the result comes to where the data was sent from.
      part.result = lends() ? AddArrival(bytes) : part.block;
    }
    if (!own().empty()) AddContributions(own());
  }

  bool Advance() override {
    bool moved = AdvanceOwn();
    for (int owner = 0; owner < work_->size(); ++owner) {
      moved |= AdvancePart(owner);
    }
    moved |= Sweep(&result_sends_);
    output_done_ = open_parts_ == 0;
    finished_ = output_done_ && open_sends_ == 0 && result_sends_.empty();
    return moved;
  }

 protected:
  void Post() override {
    // Beginning behind this rank, so that not all send to the same one first;
    // this rank's own part comes last.
    for (int i = 1; i <= work_->size(); ++i) {
      const int owner = (work_->rank() + i) % work_->size();
      Part& part = parts_[owner];
      if (part.range.empty()) continue;
      ++open_parts_;
      if (owner == work_->rank()) {
        PostContributions(part.range);
        continue;
      }
      PackBlock(part.block, part.range.begin, part.range.end);
      part.send = Send(owner, 0, part.block);
      part.sending = true;
      ++open_sends_;
      if (lends()) PostResult(owner);
    }
  }

 private:
  // One owner's part of the piece: this rank's data goes there and the result
  // comes back.
  struct Part {
    Range range;
    Block block;
    Block result;
    bool sending = false;
    bool receiving = false;
    MoveId send = 0;
    MoveId receive = 0;
  };

  const Range& own() { return parts_[work_->rank()].range; }

  Range PartOf(int owner) const {
    const int64_t count = range_.end - range_.begin;
    const int64_t share = (count + work_->size() - 1) / work_->size();
    const int64_t part_elements =
        (share + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
    const int64_t begin = std::min(owner * part_elements, count);
    const int64_t end = std::min(begin + part_elements, count);
    return {range_.begin + begin, range_.begin + end};
  }

  bool AdvanceOwn() {
    if (own_done_ || own().empty()) return false;
    const bool moved = CollectContributions();
    if (!all_here()) return moved;
    Reduce(own(), own_block());
    for (int peer = 0; peer < work_->size(); ++peer) {
      if (peer == work_->rank()) continue;
      result_sends_.push_back(Send(peer, 1, own_block()));
    }
    UnpackBlock(own_block(), work_->rank(), own().begin, own().end);
    own_done_ = true;
    --open_parts_;
    return true;
  }

  void PostResult(int owner) {
    Part& part = parts_[owner];
    part.receive = Receive(owner, 1, part.result);
    part.receiving = true;
  }

  bool AdvancePart(int owner) {
    Part& part = parts_[owner];
    bool moved = false;
    if (part.sending && Test(part.send)) {
      part.sending = false;
      --open_sends_;
      if (!lends()) PostResult(owner);
      moved = true;
    }
    if (!part.receiving || !Arrive(part.receive, &part.result)) return moved;
    if (!Read(part.result)) {
      UnpackBlock(part.result, work_->rank(), part.range.begin, part.range.end);
    }
    Release(part.receive, &part.result);
    part.receiving = false;
    --open_parts_;
    return true;
  }

  std::vector<Part> parts_;  // by owner
  std::vector<MoveId> result_sends_;
  int open_parts_ = 0;
  int open_sends_ = 0;
  bool own_done_ = false;
};

}  // namespace

std::unique_ptr<Piece> NewAllreducePiece(BatchWork* work, int64_t index) {
  const Range range = RangeOf(*work, index);
  const int64_t bytes = (range.end - range.begin) * work->element_bytes();
  // Without elements there is no owner, but ranks must hear of each other.
  if (range.empty() ||
      (bytes <= kOneRoundBytes && work->size() <= kOneRoundRanks)) {
    return std::make_unique<OneRoundPiece>(work, index);
  }
  return std::make_unique<ByPartsPiece>(work, index);
}

}  // namespace hvd
