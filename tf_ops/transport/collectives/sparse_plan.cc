// SPDX-License-Identifier: Apache-2.0
// Unites ids, and cuts the rows that they stand for.
#include "transport/collectives/sparse_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "cpu/id_union.h"

namespace hvd {
namespace {

// Whose elements are counted: the result's, which has every row.
struct OfResult {
  int64_t next = 0;  // how many of its rows are before the next piece's run

  int64_t RowsBefore(int64_t row) const { return row; }
  int64_t RowAt(int64_t index) const { return index; }
};

// A rank's, which has the rows of these places.
struct OfRank {
  int64_t next = 0;
  Span<uint32_t> places;

  // How many of the places are before `row`. The search begins at `next`,
  // because the row is behind that, and mostly close.
  int64_t RowsBefore(int64_t row) const {
    int64_t step = 1;
    while (RowAt(next + step - 1) < row) step *= 2;
    const uint32_t* const end =
        places.begin() + std::min(next + step, places.size());
    return std::lower_bound(places.begin() + next, end, row) - places.begin();
  }
  // Behind the last one: no row of any table.
  int64_t RowAt(int64_t index) const {
    return index < places.size() ? int64_t{places[index]}
                                 : std::numeric_limits<int64_t>::max();
  }
};

// Fills pieces one after another. Of each piece none of the counted has more
// elements than `most_elements`.
template <typename Counted>
class Cutter {
 public:
  Cutter(int64_t most_elements, size_t counted)
      : most_(most_elements), room_(counted, 0) {}

  // `counted` begin with the first row.
  void Add(size_t segment, int64_t rows, int64_t row_count,
           std::vector<Counted>* counted_rows) {
    std::vector<Counted>& counted = *counted_rows;
    if (row_count > most_) return AddLongRows(segment, rows, row_count);
    for (int64_t row = 0; row < rows;) {
      int64_t end = EndOfRoom(rows, row_count, counted);
      if (pieces_.empty() || end == row) {
        NewPiece();
        end = EndOfRoom(rows, row_count, counted);
      }
      pieces_.back().push_back({segment, {row, end}, 0, row_count});
      for (size_t i = 0; i < counted.size(); ++i) {
        const int64_t next = counted[i].RowsBefore(end);
        room_[i] -= row_count * (next - std::exchange(counted[i].next, next));
      }
      row = end;
    }
  }

  std::vector<SparsePiece> Take() { return std::move(pieces_); }

 private:
  // The first row from the next one on that does not fit.
  int64_t EndOfRoom(int64_t rows, int64_t row_count,
                    const std::vector<Counted>& counted) const {
    int64_t end = rows;
    for (size_t i = 0; i < counted.size(); ++i) {
      end = std::min(end,
                     counted[i].RowAt(counted[i].next + room_[i] / row_count));
    }
    return end;
  }
  void NewPiece() {
    pieces_.emplace_back();
    std::fill(room_.begin(), room_.end(), most_);
  }
  void AddLongRows(size_t segment, int64_t rows, int64_t row_count) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < row_count; column += most_) {
        NewPiece();
        const int64_t columns = std::min(most_, row_count - column);
        pieces_.back().push_back({segment, {row, row + 1}, column, columns});
      }
    }
    std::fill(room_.begin(), room_.end(), 0);
  }

  const int64_t most_;
  std::vector<int64_t> room_;  // of each counted one, in the last piece
  std::vector<SparsePiece> pieces_;
};

// The most elements of a piece, so that pieces are of about the same size.
int64_t EvenPiece(int64_t total, int64_t longest_row, int64_t most_elements,
                  int64_t pieces) {
  const int64_t most_at_once = most_elements * pieces;
  const int64_t times =
      std::max((total + most_at_once - 1) / most_at_once, int64_t{1});
  const int64_t even = (total + times * pieces - 1) / (times * pieces);
  return std::max(even, std::min(longest_row, most_elements));
}

}  // namespace

SparsePlan::SparsePlan(int ranks, std::vector<int64_t> row_counts, int64_t rows)
    : ranks_(ranks),
      row_counts_(std::move(row_counts)),
      all_places_(new uint32_t[static_cast<size_t>(rows)]),
      all_ids_(new int64_t[static_cast<size_t>(rows)]),
      next_places_(all_places_.get()),
      next_ids_(all_ids_.get()) {
  places_.reserve(row_counts_.size() * static_cast<size_t>(ranks));
  united_.reserve(row_counts_.size());
}

void SparsePlan::Unite(const std::vector<Span<int64_t>>& ids) {
  const int64_t count = UniteIds(ids, next_places_, next_ids_);
  united_.emplace_back(next_ids_, count);
  next_ids_ += count;
  for (const Span<int64_t>& of_rank : ids) {
    places_.emplace_back(next_places_, of_rank.size());
    next_places_ += of_rank.size();
  }
}

bool SparsePlan::PrefersOwners(size_t segment) const {
  // To all go (P - 1) times all rows. To owners go all rows but an owner's own,
  // 1 / P of them, and then (P - 1) times the rows of the result.
  int64_t rows = 0;
  for (int rank = 0; rank < ranks(); ++rank) {
    rows += places(segment, rank).size();
  }
  return ranks() * united(segment).size() < (ranks() - 1) * rows;
}

std::vector<SparsePiece> SparsePlan::Cut(const std::vector<size_t>& segments,
                                         int64_t most_elements,
                                         int64_t pieces) const {
  int64_t total = 0, longest = 1;
  for (size_t segment : segments) {
    total += united(segment).size() * row_counts_[segment];
    longest = std::max(longest, row_counts_[segment]);
  }
  Cutter<OfResult> cutter(EvenPiece(total, longest, most_elements, pieces), 1);
  for (size_t segment : segments) {
    if (row_counts_[segment] == 0) continue;
    std::vector<OfResult> counted(1);
    cutter.Add(segment, united(segment).size(), row_counts_[segment], &counted);
  }
  return cutter.Take();
}

std::vector<SparsePiece> SparsePlan::CutByRank(
    const std::vector<size_t>& segments, int64_t most_elements) const {
  const auto ranks = static_cast<size_t>(this->ranks());
  std::vector<int64_t> totals(ranks, 0);
  int64_t longest = 1;
  for (size_t segment : segments) {
    for (size_t rank = 0; rank < ranks; ++rank) {
      totals[rank] +=
          places(segment, static_cast<int>(rank)).size() * row_counts_[segment];
    }
    longest = std::max(longest, row_counts_[segment]);
  }
  const int64_t most_of_rank = *std::max_element(totals.begin(), totals.end());
  Cutter<OfRank> cutter(EvenPiece(most_of_rank, longest, most_elements, 1),
                        ranks);
  std::vector<OfRank> counted(ranks);
  for (size_t segment : segments) {
    if (row_counts_[segment] == 0) continue;
    for (size_t rank = 0; rank < ranks; ++rank) {
      counted[rank] = {0, places(segment, static_cast<int>(rank))};
    }
    cutter.Add(segment, united(segment).size(), row_counts_[segment], &counted);
  }
  return cutter.Take();
}

RowRange SparsePlan::RowsIn(const SparseRun& run, int rank) const {
  const Span<uint32_t> own = places(run.segment, rank);
  if (run.rows.size() == united(run.segment).size()) return {0, own.size()};
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
