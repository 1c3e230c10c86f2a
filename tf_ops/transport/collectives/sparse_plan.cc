// SPDX-License-Identifier: Apache-2.0
// Unites ids, and cuts the rows that they stand for.
#include "transport/collectives/sparse_plan.h"

#include <algorithm>
#include <utility>

namespace hvd {
namespace {

// Fills pieces one after another.
class Cutter {
 public:
  explicit Cutter(int64_t most_elements) : most_(most_elements) {}

  void Add(size_t segment, int64_t rows, int64_t row_count) {
    if (row_count > most_) return AddLongRows(segment, rows, row_count);
    for (int64_t row = 0; row < rows;) {
      if (room_ < row_count) NewPiece();
      const int64_t count = std::min(room_ / row_count, rows - row);
      pieces_.back().push_back({segment, {row, row + count}, 0, row_count});
      room_ -= count * row_count;
      row += count;
    }
  }

  std::vector<SparsePiece> Take() { return std::move(pieces_); }

 private:
  void NewPiece() {
    pieces_.emplace_back();
    room_ = most_;
  }
  void AddLongRows(size_t segment, int64_t rows, int64_t row_count) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < row_count; column += most_) {
        NewPiece();
        const int64_t columns = std::min(most_, row_count - column);
        pieces_.back().push_back({segment, {row, row + 1}, column, columns});
      }
    }
    room_ = 0;
  }

  const int64_t most_;
  int64_t room_ = 0;
  std::vector<SparsePiece> pieces_;
};

}  // namespace

SparsePlan::SparsePlan(
    const std::vector<std::vector<std::vector<int64_t>>>& ids,
    std::vector<int64_t> row_counts)
    : row_counts_(std::move(row_counts)) {
  unions_.reserve(ids.size());
  for (const auto& lists : ids) unions_.push_back(UnionOfIds(lists));
}

bool SparsePlan::PrefersOwners(size_t segment) const {
  // To all go (P - 1) times all rows. To owners go all rows but an owner's own,
  // 1 / P of them, and then (P - 1) times the rows of the result.
  int64_t rows = 0;
  for (const std::vector<uint32_t>& places : unions_[segment].places) {
    rows += static_cast<int64_t>(places.size());
  }
  return ranks() * static_cast<int64_t>(united(segment).size()) <
         (ranks() - 1) * rows;
}

std::vector<SparsePiece> SparsePlan::Cut(const std::vector<size_t>& segments,
                                         int64_t most_elements,
                                         int64_t pieces) const {
  int64_t total = 0, longest = 1;
  for (size_t segment : segments) {
    total +=
        static_cast<int64_t>(united(segment).size()) * row_counts_[segment];
    longest = std::max(longest, row_counts_[segment]);
  }
  const int64_t most_at_once = most_elements * pieces;
  const int64_t times =
      std::max((total + most_at_once - 1) / most_at_once, int64_t{1});
  const int64_t even = (total + times * pieces - 1) / (times * pieces);
  Cutter cutter(std::max(even, std::min(longest, most_elements)));
  for (size_t segment : segments) {
    if (row_counts_[segment] == 0) continue;
    cutter.Add(segment, static_cast<int64_t>(united(segment).size()),
               row_counts_[segment]);
  }
  return cutter.Take();
}

RowRange SparsePlan::RowsIn(const SparseRun& run, int rank) const {
  const std::vector<uint32_t>& own = places(run.segment, rank);
  const auto begin = std::lower_bound(own.begin(), own.end(), run.rows.begin);
  const auto end = std::lower_bound(begin, own.end(), run.rows.end);
  return {begin - own.begin(), end - own.begin()};
}

int64_t SparsePlan::CountOf(const SparsePiece& piece, int rank) const {
  int64_t count = 0;
  for (const SparseRun& run : piece) {
    count += RowsIn(run, rank).size() * run.columns;
  }
  return count;
}

int64_t SparsePlan::CountOf(const SparsePiece& piece) {
  int64_t count = 0;
  for (const SparseRun& run : piece) count += run.elements();
  return count;
}

SegmentMap SparsePlan::MapOf(const SparsePiece& piece, int rank) const {
  std::vector<int64_t> counts(segment_count(), 0), firsts(segment_count(), 0);
  for (const SparseRun& run : piece) {
    const RowRange rows = RowsIn(run, rank);
    counts[run.segment] = rows.size() * run.columns;
    firsts[run.segment] = rows.begin * row_count(run.segment) + run.column;
  }
  return SegmentMap(counts, std::move(firsts));
}

SegmentMap SparsePlan::MapOf(const SparsePiece& piece) const {
  std::vector<int64_t> counts(segment_count(), 0), firsts(segment_count(), 0);
  for (const SparseRun& run : piece) {
    counts[run.segment] = run.elements();
    firsts[run.segment] = run.rows.begin * row_count(run.segment) + run.column;
  }
  return SegmentMap(counts, std::move(firsts));
}

}  // namespace hvd
