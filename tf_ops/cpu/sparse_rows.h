// SPDX-License-Identifier: Apache-2.0
// Rows of a table with ids: rows of equal id are added up, lists are merged.
//
// Pure functions of their arguments. The same input gives the same bits on
// every rank and with every vector unit. An id type is kInt32 or kInt64.
#ifndef HVD_CPU_SPARSE_ROWS_H_
#define HVD_CPU_SPARSE_ROWS_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "core/types.h"
#include "cpu/vector_unit.h"

namespace hvd {

// GroupRows takes so many rows at most.
inline constexpr int64_t kMostGroupedRows = std::numeric_limits<int32_t>::max();

// The position of the first id that is not in [0, rows), or -1. `rows` below 0:
// ids have no upper limit.
[[nodiscard]] int64_t FindIdOutside(DataType id_type, const void* ids,
                                    int64_t count, int64_t rows);

// Which rows of a list have which id.
struct RowGroups {
  std::vector<int64_t> ids;  // each once, ascending
  // The positions of all rows: by id, and of one id as in the list. Both are
  // empty if the list itself has each id once, ascending.
  std::vector<uint32_t> positions;
  std::vector<uint32_t> ends;  // of each id, in `positions`

  bool is_list() const { return positions.empty(); }
};

[[nodiscard]] RowGroups GroupRows(DataType id_type, const void* ids,
                                  int64_t count);

// Row i of `out` is the sum of the rows of groups.ids[i], in the order of the
// list. Rows have `row_count` elements. float16 and bfloat16 are added in
// float32 and rounded once. Integers wrap around. Not for kBool.
void SumGroups(DataType dtype, const RowGroups& groups, const void* values,
               int64_t row_count, void* out,
               VectorUnit unit = BestVectorUnit());

// Every id of any list, once, ascending. So are the ids of each list.
[[nodiscard]] std::vector<int64_t> UnionOfIds(
    const std::vector<std::vector<int64_t>>& lists);

// Some rows of one rank. Ids are ascending, and each is there once.
struct RankRows {
  const int64_t* ids = nullptr;
  int64_t count = 0;
  const void* values = nullptr;  // one row after another
};

// How rows of several ranks become one.
struct RowReduction {
  DataType dtype = DataType::kFloat32;
  bool averages = false;  // the sum is divided by `ranks`
  int64_t ranks = 1;
  double postscale = 1.0;
};

// Row i of `out` is the sum of the rows of ids[i], in the order of `parts`,
// averaged and scaled as ReduceBlocks does it. Each id of a part is one of the
// `count` ids, which are ascending. Rows have `row_count` elements. `out` may
// be the values of no part.
void MergeRows(const RowReduction& reduction,
               const std::vector<RankRows>& parts, const int64_t* ids,
               int64_t count, int64_t row_count, void* out,
               VectorUnit unit = BestVectorUnit());

}  // namespace hvd

#endif  // HVD_CPU_SPARSE_ROWS_H_
