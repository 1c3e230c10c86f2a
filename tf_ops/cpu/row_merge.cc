// SPDX-License-Identifier: Apache-2.0
// Adds rows tile by tile.
#include "cpu/row_merge.h"

#include <algorithm>
#include <cstddef>

#include "cpu/element_loops.h"
#include "cpu/row_loops.h"

namespace hvd {
namespace {

using element_loops::Averaging;
using element_loops::Compute;
using element_loops::Convert;
using element_loops::Divide;
using element_loops::Scale;
using element_loops::WithType;
using row_loops::AddRow;
using row_loops::kNothing;
using row_loops::WithLength;

// So many elements stay in the first-level cache.
constexpr int64_t kTile = 1024;

// Sums of T, formed in C.
template <typename T, typename C>
class RowMerger {
 public:
  RowMerger(const RowReduction& reduction, const std::vector<RankRows>& parts,
            int64_t row_count)
      : reduction_(reduction), parts_(parts), row_count_(row_count) {}

  void Merge(RowRange united, T* out) const {
    const int64_t step = std::max(kTile / row_count_, int64_t{1});
    std::vector<int64_t> next(parts_.size(), 0);  // row of each part
    for (int64_t row = united.begin; row < united.end; row += step) {
      const RowRange tile{row, std::min(row + step, united.end)};
      for (int64_t column = 0; column < row_count_; column += kTile) {
        const int64_t columns = std::min(kTile, row_count_ - column);
        const int64_t elements = tile.size() * columns;
        T* const target = out + (row - united.begin) * row_count_ + column;
        if constexpr (std::is_same_v<T, C>) {
          AddTile(tile, column, columns, &next, target);
          Finish(target, elements);
        } else {
          C sums[kTile];
          AddTile(tile, column, columns, &next, sums);
          Finish(sums, elements);
          Convert(sums, target, elements);
        }
      }
    }
  }

 private:
  // A tile has some whole rows, or some columns of one row. With its last
  // columns, `next` goes on.
  void AddTile(RowRange tile, int64_t column, int64_t columns,
               std::vector<int64_t>* next, C* sums) const {
    std::fill(sums, sums + tile.size() * columns, kNothing<C>);
    const bool ends_rows = column + columns == row_count_;
    for (size_t p = 0; p < parts_.size(); ++p) {
      const RankRows& part = parts_[p];
      const T* const values = static_cast<const T*>(part.values) + column;
      int64_t at = (*next)[p];
      WithLength(columns, [&](auto length) {
        for (; at < part.count && part.places[at] < tile.end; ++at) {
          AddRow(values + at * row_count_, length,
                 sums + (part.places[at] - tile.begin) * length);
        }
      });
      if (ends_rows) (*next)[p] = at;
    }
  }

  void Finish(C* sums, int64_t count) const {
    if (reduction_.averages) Divide(sums, count, reduction_.ranks);
    if (reduction_.postscale != 1.0) {
      Scale(sums, sums, count, reduction_.postscale);
    }
  }

  const RowReduction& reduction_;
  const std::vector<RankRows>& parts_;
  const int64_t row_count_;
};

}  // namespace

void MergeRows(const RowReduction& reduction,
               const std::vector<RankRows>& parts, RowRange united,
               int64_t row_count, void* out, VectorUnit unit) {
  if (united.size() == 0 || row_count == 0) return;
  RunWith(unit, [&] {
    WithType(reduction.dtype, [&](auto type) {
      using T = decltype(type);
      T* const target = static_cast<T*>(out);
      if (reduction.averages) {
        RowMerger<T, Averaging<T>>(reduction, parts, row_count)
            .Merge(united, target);
      } else {
        RowMerger<T, Compute<T>>(reduction, parts, row_count)
            .Merge(united, target);
      }
    });
  });
}

}  // namespace hvd
