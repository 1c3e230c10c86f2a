// SPDX-License-Identifier: Apache-2.0
// Rows: which rows of a tensor a rank has, and how many rows ranks have.
#ifndef HVD_CORE_ROWS_H_
#define HVD_CORE_ROWS_H_

#include <cstdint>
#include <vector>

#include "core/span.h"

namespace hvd {

// One number for each [segment or shape][rank of the set].
using RankCounts = std::vector<std::vector<int64_t>>;
// Those of some segments or shapes.
using RankCountsSpan = Span<std::vector<int64_t>>;

// Some rows of a tensor: [begin, end) of its first dimension.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
};

// The rows that `rank` gets of a reducescatter of `rows`. They are as even as
// can be. The first ranks get one row more, as Horovod's do.
[[nodiscard]] constexpr RowRange ScatteredRows(int64_t rows, int rank,
                                               int size) {
  const int64_t share = rows / size, more = rows % size;
  const int64_t begin = rank * share + (rank < more ? rank : more);
  return {begin, begin + share + (rank < more ? 1 : 0)};
}

}  // namespace hvd

#endif  // HVD_CORE_ROWS_H_
