// SPDX-License-Identifier: Apache-2.0
// SparsePlan: which rows each rank has of the tables of a batch, and how their
// values are cut into pieces.
#ifndef HVD_TRANSPORT_COLLECTIVES_SPARSE_PLAN_H_
#define HVD_TRANSPORT_COLLECTIVES_SPARSE_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/rows.h"
#include "core/types.h"
#include "cpu/id_union.h"
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
  // `ids` of [segment][rank] are ascending, each once. `row_counts` are the
  // elements of a row of each segment.
  SparsePlan(const std::vector<std::vector<std::vector<int64_t>>>& ids,
             std::vector<int64_t> row_counts);

  size_t segment_count() const { return row_counts_.size(); }
  int ranks() const { return static_cast<int>(unions_[0].places.size()); }
  int64_t row_count(size_t segment) const { return row_counts_[segment]; }
  // The ids of the result.
  const std::vector<int64_t>& united(size_t segment) const {
    return unions_[segment].ids;
  }
  // Which rows of the result a rank's rows are part of.
  const std::vector<uint32_t>& places(size_t segment, int rank) const {
    return unions_[segment].places[static_cast<size_t>(rank)];
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
  std::vector<IdUnion> unions_;  // by segment
  const std::vector<int64_t> row_counts_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_SPARSE_PLAN_H_
