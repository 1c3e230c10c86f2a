// SPDX-License-Identifier: Apache-2.0
// Allgather: every rank gets the rows of all ranks, in rank order.
#include <memory>
#include <utility>

#include "core/rows.h"
#include "transport/collectives/gather_chunk.h"
#include "transport/collectives/range.h"
#include "transport/collectives/sizes_exchange.h"

namespace hvd {
namespace {

class AllgatherPhase final : public Phase {
 public:
  AllgatherPhase(BatchWork* work, const Operands& operands, SegmentMap in,
                 std::vector<SegmentMap> outs, Next next)
      : Phase(work, operands, BytesOfAll(operands, outs), std::move(next)),
        in_(std::move(in)),
        outs_(std::move(outs)),
        plan_(in_.total(), element_bytes(), GatheredBlockBytes(*work)) {
    for (const SegmentMap& out : outs_) plan_.Cover(out.total());
  }

  int64_t chunk_count() const override { return plan_.chunk_count; }
  std::unique_ptr<Chunk> NewChunk(int64_t index) override;

  const SegmentMap& in() const { return in_; }
  const SegmentMap& out(int origin) const {
    return outs_[static_cast<size_t>(origin)];
  }
  // In elements of the origin.
  Range RangeOf(int origin, int64_t index) const {
    return ChunkRange(plan_, out(origin).total(), index);
  }

 private:
  static int64_t BytesOfAll(const Operands& operands,
                            const std::vector<SegmentMap>& outs) {
    int64_t elements = 0;
    for (const SegmentMap& out : outs) elements += out.total();
    return elements * static_cast<int64_t>(SizeOf(operands.dtype));
  }

  const SegmentMap in_;
  const std::vector<SegmentMap> outs_;
  ChunkPlan plan_;
};

// Chunk k of the phase has chunk k of every rank that has so many chunks.
class AllgatherChunk final : public GatherChunk {
 public:
  AllgatherChunk(AllgatherPhase* phase, int64_t index)
      : GatherChunk(phase, index), allgather_(phase) {
    for (int origin = 0; origin < work_->size(); ++origin) {
      AddContribution(RangeOf(origin).size() * phase->element_bytes());
    }
  }

 protected:
  bool PackOwn(const Block& block) override {
    const Range own = RangeOf(work_->rank());
    return PackBlock(block, allgather_->in(), own.begin, own.end);
  }
  bool Take(int origin, const Block& block) override {
    const Range range = RangeOf(origin);
    UnpackBlock(block, allgather_->out(origin), range.begin, range.end);
    return true;
  }

 private:
  // In elements of the origin.
  Range RangeOf(int origin) const {
    return allgather_->RangeOf(origin, index_);
  }

  AllgatherPhase* const allgather_;
};

std::unique_ptr<Chunk> AllgatherPhase::NewChunk(int64_t index) {
  return std::make_unique<AllgatherChunk>(this, index);
}

// The phase of the data, once the rows are known.
std::unique_ptr<Phase> NewDataPhase(BatchWork* work, const RankCounts& rows) {
  work->Allocate(rows);
  const Batch& batch = work->batch();
  return NewAllgatherPhase(work, MovedOperands(batch),
                           SegmentMap(CountsOf(batch.segments)),
                           MapsByRank(batch.segments, rows, work->size()), {});
}

}  // namespace

std::unique_ptr<Phase> NewAllgatherPhase(BatchWork* work, Operands operands,
                                         SegmentMap in,
                                         std::vector<SegmentMap> outs,
                                         Phase::Next next) {
  return std::make_unique<AllgatherPhase>(work, std::move(operands),
                                          std::move(in), std::move(outs),
                                          std::move(next));
}

std::unique_ptr<Phase> NewAllgatherFirstPhase(BatchWork* work) {
  const Batch& batch = work->batch();
  if (!batch.rows.empty()) return NewDataPhase(work, batch.rows);
  return NewRowCountsPhase(work, [work](const RankCounts& rows) {
    return NewDataPhase(work, rows);
  });
}

}  // namespace hvd
