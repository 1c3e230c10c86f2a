// SPDX-License-Identifier: Apache-2.0
// Reducescatter: every rank sends each owner its elements. The owner reduces
// them in rank order. So it has the bits that an allreduce would give it.
#include <utility>

#include "core/rows.h"
#include "transport/collectives/reducescatter_phase.h"
#include "transport/collectives/reducing_chunk.h"

namespace hvd {
namespace {

class DirectChunk final : public ReducingChunk {
 public:
  DirectChunk(ReducescatterPhase* phase, int64_t index)
      : ReducingChunk(phase, index),
        scatter_(phase),
        own_(phase->RangeOf(work_->rank(), index)) {
    blocks_.resize(static_cast<size_t>(work_->size()));
    for (int owner = 0; owner < work_->size(); ++owner) {
      if (!phase->Exists(owner, index)) continue;
      const int64_t bytes = phase->BytesOf(phase->RangeOf(owner, index));
      if (owner == work_->rank()) {
        AddContributions(bytes);
      } else {
        blocks_[owner] = AddBlock(bytes);
      }
    }
  }

  bool Advance() override {
    bool moved = Sweep(&sends_);
    if (!output_done_) {
      if (owns_) moved |= CollectContributions();
      if (all_here()) {
        Reduce();
        output_done_ = moved = true;
      }
    }
    finished_ = output_done_ && sends_.empty();
    return moved;
  }

 protected:
  void Post() override {
    owns_ = scatter_->Exists(work_->rank(), index_);
    if (owns_) ReceiveContributions();
    // The loop begins with the rank after this one, so that not all ranks send
    // to the same one first.
    for (int i = 1; i < work_->size(); ++i) {
      const int owner = (work_->rank() + i) % work_->size();
      if (!scatter_->Exists(owner, index_)) continue;
      const Range range = scatter_->RangeOf(owner, index_);
      PackBlock(blocks_[owner], scatter_->in(owner), range.begin, range.end);
      sends_.push_back(Send(owner, 0, blocks_[owner]));
    }
  }

 private:
  void Reduce() {
    if (!owns_) return;
    if (!ContributedPoison()) {
      phase_->reducer().Reduce(
          Contributed(scatter_->in(work_->rank()), own_.begin, own_.end),
          {scatter_->out()});
      phase_->FailIfNotFinite();
    }
    ReleaseContributions();
  }

  ReducescatterPhase* const scatter_;
  const Range own_;
  std::vector<Block> blocks_;  // by owner; this rank's own stays empty
  std::vector<MoveId> sends_;
  bool owns_ = false;  // something of this chunk
};

// Elements of one rank's rows of each segment.
std::vector<int64_t> OwnedCounts(const std::vector<Segment>& segments, int rank,
                                 int size, std::vector<int64_t>* firsts) {
  std::vector<int64_t> counts;
  for (const Segment& segment : segments) {
    const RowRange rows = ScatteredRows(segment.rows, rank, size);
    counts.push_back(rows.size() * segment.row_count);
    firsts->push_back(rows.begin * segment.row_count);
  }
  return counts;
}

}  // namespace

ReducescatterPhase::ReducescatterPhase(BatchWork* work,
                                       const Operands& operands)
    : Phase(work, ForHosts(operands, work->hosts()), hvd::BytesOf(operands),
            {}),
      plan_(0, element_bytes(), work->chunk_bytes() / work->size()) {
  for (int owner = 0; owner < work->size(); ++owner) {
    std::vector<int64_t> firsts;
    const std::vector<int64_t> counts =
        OwnedCounts(operands.segments, owner, work->size(), &firsts);
    if (owner == work->rank()) out_ = SegmentMap(counts);
    ins_.emplace_back(counts, std::move(firsts));
    plan_.Cover(ins_.back().total());
  }
}

std::unique_ptr<Chunk> ReducescatterPhase::NewChunk(int64_t index) {
  if (hosts().has_two_levels()) {
    return NewTwoLevelReducescatterChunk(this, index);
  }
  return std::make_unique<DirectChunk>(this, index);
}

std::unique_ptr<Phase> NewReducescatterFirstPhase(BatchWork* work) {
  return std::make_unique<ReducescatterPhase>(work,
                                              ReducedOperands(work->batch()));
}

}  // namespace hvd
