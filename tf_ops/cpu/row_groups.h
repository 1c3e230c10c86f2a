// SPDX-License-Identifier: Apache-2.0
// Rows of a table with ids: those of equal id are found and added up.
//
// Pure functions of their arguments. The same input gives the same bits on
// every rank and with every vector unit. An id type is kInt32 or kInt64.
#ifndef HVD_CPU_ROW_GROUPS_H_
#define HVD_CPU_ROW_GROUPS_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "core/span.h"
#include "core/types.h"
#include "cpu/vector_unit.h"

namespace hvd {

// GroupRows takes so many rows at most.
inline constexpr int64_t kMostGroupedRows = std::numeric_limits<int32_t>::max();

// The position of the first id that is not in [0, rows), or -1. `rows` below 0:
// ids have no upper limit.
[[nodiscard]] int64_t FindIdOutside(DataType id_type, const void* ids,
                                    int64_t count, int64_t rows);

// Writes ids, which fit, as numbers of the type.
void WriteIds(DataType id_type, Span<int64_t> ids, void* out);

// Which rows of a list have which id.
struct RowGroups {
  std::vector<int64_t> ids;  // each once, ascending
  // For each row of the list, the place of its id in `ids`. Empty if the list
  // itself has each id once, ascending.
  std::vector<uint32_t> places;

  bool is_list() const { return places.empty(); }
};

[[nodiscard]] RowGroups GroupRows(DataType id_type, const void* ids,
                                  int64_t count);

// Row i of `out` is the sum of the rows of groups.ids[i], in the order of the
// list. Rows have `row_count` elements. float16 and bfloat16 are added in
// float32 and rounded once. Integers wrap around. Not for kBool.
void SumGroups(DataType dtype, const RowGroups& groups, const void* values,
               int64_t row_count, void* out,
               VectorUnit unit = BestVectorUnit());

}  // namespace hvd

#endif  // HVD_CPU_ROW_GROUPS_H_
