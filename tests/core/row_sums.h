// SPDX-License-Identifier: Apache-2.0
// Sums of rows with ids as maps of ids have them, for tests.
#ifndef HVD_TESTS_CORE_ROW_SUMS_H_
#define HVD_TESTS_CORE_ROW_SUMS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "core/types.h"
#include "typed_values.h"

namespace hvd {

// What a row of each id adds up to, in float64, which is exact here.
using Sums = std::map<int64_t, std::vector<double>>;

inline void AddTo(Sums* sums, int64_t id, int64_t row_count, DataType dtype,
                  const char* values, int64_t row) {
  std::vector<double>& sum = (*sums)[id];
  sum.resize(static_cast<size_t>(row_count), 0.0);
  for (int64_t c = 0; c < row_count; ++c) {
    sum[c] += GetValue(dtype, values, row * row_count + c);
  }
}

inline int64_t CountWrong(const Sums& sums, DataType dtype, int64_t row_count,
                          const std::vector<char>& out) {
  int64_t wrong = 0, at = 0;
  for (const auto& [id, sum] : sums) {
    for (int64_t c = 0; c < row_count; ++c) {
      wrong += GetValue(dtype, out.data(), at++) != Wrapped(dtype, sum[c]);
    }
  }
  return wrong;
}

inline std::vector<char> Samples(DataType dtype, int rank, int64_t count) {
  std::vector<char> values(static_cast<size_t>(count) * SizeOf(dtype));
  for (int64_t i = 0; i < count; ++i) {
    PutValue(dtype, values.data(), i,
             SampleValue(dtype, ReduceOp::kSum, rank, i));
  }
  return values;
}

}  // namespace hvd

#endif  // HVD_TESTS_CORE_ROW_SUMS_H_
