// SPDX-License-Identifier: Apache-2.0
// SparsePhase: a phase that moves rows with ids, and reduces them.
//
// All ranks know which rows the others have. So a piece of the result is
// reduced in rank order, straight from the peers' blocks.
#ifndef HVD_TRANSPORT_COLLECTIVES_SPARSE_PHASE_H_
#define HVD_TRANSPORT_COLLECTIVES_SPARSE_PHASE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/row_merge.h"
#include "transport/collectives/phase.h"
#include "transport/collectives/sparse_plan.h"

namespace hvd {

class SparsePhase : public Phase {
 public:
  SparsePhase(BatchWork* work, std::shared_ptr<const SparsePlan> plan,
              const std::vector<size_t>& segments,
              std::vector<SparsePiece> pieces, Next next);

  const SparsePlan& plan() const { return *plan_; }
  int64_t piece_count() const { return static_cast<int64_t>(pieces_.size()); }
  // Behind the last one they are empty.
  const SparsePiece& piece(int64_t index) const;

  // Bytes of a rank's block of the piece, and of the result's.
  int64_t BlockBytes(const SparsePiece& piece, int rank) const {
    return plan_->CountOf(piece, rank) * element_bytes();
  }
  int64_t ResultBytes(const SparsePiece& piece) const {
    return SparsePlan::CountOf(piece) * element_bytes();
  }

  // Reduces the piece into `result`, as it crosses the wire. `blocks` are by
  // rank, as they have crossed it. Null: that rank has no row of the piece.
  void Merge(const SparsePiece& piece,
             const std::vector<const std::byte*>& blocks,
             std::byte* result) const;
  // The same, into the outputs.
  void Merge(const SparsePiece& piece,
             const std::vector<const std::byte*>& blocks) const;

 private:
  // `parts` of [rank] have the values of this run, and then those of the next.
  void MergeRun(const SparseRun& run, std::vector<RankRows>* parts,
                void* out) const;

  const std::shared_ptr<const SparsePlan> plan_;
  const std::vector<SparsePiece> pieces_;
};

// How many elements of the batch cross the wire in so many bytes; some at
// least.
[[nodiscard]] int64_t ElementsOnWire(const BatchWork& work, int64_t bytes);

// Every rank's rows of these segments go to all ranks.
[[nodiscard]] std::unique_ptr<Phase> NewSparseGatherPhase(
    BatchWork* work, std::shared_ptr<const SparsePlan> plan,
    const std::vector<size_t>& segments, Phase::Next next);
// The rows of these segments go to their owners, who send the results to all
// ranks.
[[nodiscard]] std::unique_ptr<Phase> NewSparseOwnersPhase(
    BatchWork* work, std::shared_ptr<const SparsePlan> plan,
    const std::vector<size_t>& segments, Phase::Next next);

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_SPARSE_PHASE_H_
