// SPDX-License-Identifier: Apache-2.0
// Every rank's rows go to all ranks. Each rank adds them up.
#include <memory>
#include <utility>

#include "transport/collectives/gather_chunk.h"
#include "transport/collectives/sparse_phase.h"

namespace hvd {
namespace {

class SparseGatherPhase final : public SparsePhase {
 public:
  SparseGatherPhase(BatchWork* work,
                    const std::shared_ptr<const SparsePlan>& plan,
                    const std::vector<size_t>& segments, Next next)
      : SparsePhase(
            work, plan, segments,
            plan->CutByRank(segments,
                            ElementsOnWire(*work, GatheredBlockBytes(*work))),
            std::move(next)) {}

  int64_t chunk_count() const override {
    return std::max(piece_count(), int64_t{1});
  }
  std::unique_ptr<Chunk> NewChunk(int64_t index) override;
};

// A chunk is a piece.
class SparseGatherChunk final : public GatherChunk {
 public:
  SparseGatherChunk(SparseGatherPhase* phase, int64_t index)
      : GatherChunk(phase, index), sparse_(phase), piece_(phase->piece(index)) {
    for (int origin = 0; origin < work_->size(); ++origin) {
      AddContribution(sparse_->BlockBytes(piece_, origin));
    }
  }

 protected:
  bool PackOwn(const Block& block) override {
    const SegmentMap own = sparse_->plan().MapOf(piece_, work_->rank());
    return PackBlock(block, own, 0, own.total());
  }
  bool Take(int, const Block&) override { return false; }
  void Finish() override {
    if (!sparse_->has_memory()) return;
    std::vector<const std::byte*> blocks;
    for (int origin = 0; origin < work_->size(); ++origin) {
      blocks.push_back(DataOf(origin));
    }
    sparse_->Merge(piece_, blocks);
  }

 private:
  SparseGatherPhase* const sparse_;
  const SparsePiece& piece_;
};

std::unique_ptr<Chunk> SparseGatherPhase::NewChunk(int64_t index) {
  return std::make_unique<SparseGatherChunk>(this, index);
}

}  // namespace

std::unique_ptr<Phase> NewSparseGatherPhase(
    BatchWork* work, std::shared_ptr<const SparsePlan> plan,
    const std::vector<size_t>& segments, Phase::Next next) {
  return std::make_unique<SparseGatherPhase>(work, plan, segments,
                                             std::move(next));
}

}  // namespace hvd
