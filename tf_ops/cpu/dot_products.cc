// SPDX-License-Identifier: Apache-2.0
// Loops that compilers vectorise. Sums are formed in a fixed number of lanes.
#include "cpu/dot_products.h"

#include "cpu/elementwise.h"

namespace hvd {
namespace {

// The widest unit holds so many float64. Narrower ones use several vectors, so
// the additions are the same.
constexpr int64_t kLanes = 8;

struct Lanes {
  double aa[kLanes] = {};
  double ab[kLanes] = {};
  double bb[kLanes] = {};
};

void AddLanes(const double* a, const double* b, int64_t count, Lanes* sums) {
  Lanes local;
  int64_t at = 0;
  for (; at + kLanes <= count; at += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) {
      local.aa[k] += a[at + k] * a[at + k];
      local.ab[k] += a[at + k] * b[at + k];
      local.bb[k] += b[at + k] * b[at + k];
    }
  }
  for (int64_t k = 0; at + k < count; ++k) {
    local.aa[k] += a[at + k] * a[at + k];
    local.ab[k] += a[at + k] * b[at + k];
    local.bb[k] += b[at + k] * b[at + k];
  }
  *sums = local;
}

double SumOf(const double* lanes) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

void AddWeighed(const double* row, double weight, bool is_first, int64_t count,
                double* out) {
  if (is_first) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) out[i] = weight * row[i];
    return;
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) out[i] += weight * row[i];
}

}  // namespace

void Weigh(DataType dtype, const std::vector<const void*>& rows,
           const double* weights, int64_t count, double* out, VectorUnit unit) {
  alignas(64) double space[kMostWeighed];
  for (size_t r = 0; r < rows.size(); ++r) {
    const double* row = space;
    if (dtype == DataType::kFloat64) {
      row = static_cast<const double*>(rows[r]);
    } else {
      Unpack(dtype, DataType::kFloat64, rows[r], space, count, unit);
    }
    RunWith(unit, [&] { AddWeighed(row, weights[r], r == 0, count, out); });
  }
}

Dots DotProducts(const double* a, const double* b, int64_t count,
                 VectorUnit unit) {
  Lanes sums;
  RunWith(unit, [&] { AddLanes(a, b, count, &sums); });
  return {SumOf(sums.aa), SumOf(sums.ab), SumOf(sums.bb)};
}

}  // namespace hvd
