// SPDX-License-Identifier: Apache-2.0
// Rows of several ranks with ids are added up.
//
// Pure functions of their arguments. The same input gives the same bits on
// every rank and with every vector unit.
#ifndef HVD_CPU_ROW_MERGE_H_
#define HVD_CPU_ROW_MERGE_H_

#include <cstdint>
#include <vector>

#include "core/rows.h"
#include "core/types.h"
#include "cpu/vector_unit.h"

namespace hvd {

// Some rows of one rank.
struct RankRows {
  const uint32_t* places = nullptr;  // of the rows in a union; ascending
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

// Row i of `out` is the sum of the rows whose place is united.begin + i, in the
// order of `parts`, averaged and scaled as ReduceBlocks does it. For each place
// of `united` there is a row at least, and for no other. Rows have `row_count`
// elements. `out` may be the values of no part.
void MergeRows(const RowReduction& reduction,
               const std::vector<RankRows>& parts, RowRange united,
               int64_t row_count, void* out,
               VectorUnit unit = BestVectorUnit());

}  // namespace hvd

#endif  // HVD_CPU_ROW_MERGE_H_
