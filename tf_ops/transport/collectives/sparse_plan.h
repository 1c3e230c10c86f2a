// SPDX-License-Identifier: Apache-2.0
// SparsePlan: which rows each rank has of the tables of a batch, and how their
// values are cut into pieces.
#ifndef HVD_TRANSPORT_COLLECTIVES_SPARSE_PLAN_H_
#define HVD_TRANSPORT_COLLECTIVES_SPARSE_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/rows.h"
#include "core/span.h"
#include "core/types.h"
#include "transport/collectives/segment_map.h"

namespace hvd {

// Some rows of a table's result, or some columns of one row.
struct SparseRun {
  size_t segment = 0;
  RowRange rows;  // of the result
  int64_t column = 0;
  int64_t columns = 0;

  int64_t elements() const { return rows.size() * columns; }
};

// A piece has at most one run of each segment.
using SparsePiece = std::vector<SparseRun>;

// The same on all ranks, because all know the ids of all.
class SparsePlan {
 public:
  // `row_counts`: the elements of a row of each segment. `rows`: of all ranks
  // and segments together.
  SparsePlan(int ranks, std::vector<int64_t> row_counts, int64_t rows);

  // To be called for each segment in turn, before anything else is asked.
  // `ids` of [rank] are ascending, each once.
  void Unite(const std::vector<Span<int64_t>>& ids);

  size_t segment_count() const { return row_counts_.size(); }
  int ranks() const { return ranks_; }
  int64_t row_count(size_t segment) const { return row_counts_[segment]; }
  // The ids of the result.
  Span<int64_t> united(size_t segment) const { return united_[segment]; }
  // Which rows of the result a rank's rows are part of.
  Span<uint32_t> places(size_t segment, int rank) const {
    return places_[segment * static_cast<size_t>(ranks_) +
                   static_cast<size_t>(rank)];
  }

  // Whether less is sent if each row has an owner.
  bool PrefersOwners(size_t segment) const;

  // Cuts the values of these segments into pieces of at most `most_elements`.
  // They are of about the same size, and at least `pieces` where the rows are
  // short enough. A row is cut only if it has more elements.
  std::vector<SparsePiece> Cut(const std::vector<size_t>& segments,
                               int64_t most_elements, int64_t pieces) const;
  // The same, but no rank has more than `most_elements` of a piece. The result
  // may have more, where ranks have different rows.
  std::vector<SparsePiece> CutByRank(const std::vector<size_t>& segments,
                                     int64_t most_elements) const;

  // The rows of a rank that have a place in the run.
  RowRange RowsIn(const SparseRun& run, int rank) const;
  // Elements that a rank has for the piece, and those of the result.
  int64_t CountOf(const SparsePiece& piece, int rank) const;
  static int64_t CountOf(const SparsePiece& piece);
  // Where they are in the rank's tensors, and in the results.
  SegmentMap MapOf(const SparsePiece& piece, int rank) const;
  SegmentMap MapOf(const SparsePiece& piece) const;

 private:
  const int ranks_;
  const std::vector<int64_t> row_counts_;
  // All places and all ids. One piece of memory for each, because a batch may
  // have many small segments.
  std::unique_ptr<uint32_t[]> all_places_;
  std::unique_ptr<int64_t[]> all_ids_;
  // Where those of the next segment go.
  uint32_t* next_places_;
  int64_t* next_ids_;
  std::vector<Span<uint32_t>> places_;  // of [segment, rank]
  std::vector<Span<int64_t>> united_;   // of the segments so far
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_SPARSE_PLAN_H_
