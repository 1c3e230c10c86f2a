// SPDX-License-Identifier: Apache-2.0
// Loops that compilers vectorise.
#include "cpu/dot_products.h"

#include "cpu/elementwise.h"
#include "cpu/independent_iterations.h"

namespace hvd {
namespace {

static_assert((kMostWeighed & (kMostWeighed - 1)) == 0);

// Adds pairs that lie half a block apart, again and again. So the order is the
// same for vectors of any width, and rounding grows with the logarithm alone.
double DotProduct(const double* a, const double* b, int64_t count) {
  alignas(64) double sums[kMostWeighed];
  HVD_INDEPENDENT_ITERATIONS
  for (int64_t i = 0; i < count; ++i) sums[i] = a[i] * b[i];
  int64_t width = 1;
  while (width < count) width *= 2;
  for (int64_t i = count; i < width; ++i) sums[i] = 0.0;
  for (int64_t half = width / 2; half > 0; half /= 2) {
    HVD_INDEPENDENT_ITERATIONS
    for (int64_t i = 0; i < half; ++i) sums[i] += sums[half + i];
  }
  return count > 0 ? sums[0] : 0.0;
}

void AddWeighed(const double* row, double weight, bool is_first, int64_t count,
                double* out) {
  if (is_first) {
    HVD_INDEPENDENT_ITERATIONS
    for (int64_t i = 0; i < count; ++i) out[i] = weight * row[i];
    return;
  }
  HVD_INDEPENDENT_ITERATIONS
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
  Dots dots;
  RunWith(unit, [&] {
    dots = {DotProduct(a, a, count), DotProduct(a, b, count),
            DotProduct(b, b, count)};
  });
  return dots;
}

}  // namespace hvd
