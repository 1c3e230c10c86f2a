// SPDX-License-Identifier: Apache-2.0
// Arithmetic on vectors in float64: weighted sums and dot products.
//
// The same input gives the same bits with every vector unit, as in
// elementwise.h. Dot products depend on where a vector is cut, so callers cut
// it in the same places on every rank.
#ifndef HVD_CPU_DOT_PRODUCTS_H_
#define HVD_CPU_DOT_PRODUCTS_H_

#include <cstdint>
#include <vector>

#include "core/types.h"
#include "cpu/vector_unit.h"

namespace hvd {

// The dot products of two vectors a and b with themselves and each other.
struct Dots {
  double aa = 0.0;
  double ab = 0.0;
  double bb = 0.0;

  Dots& operator+=(const Dots& other) {
    aa += other.aa;
    ab += other.ab;
    bb += other.bb;
    return *this;
  }
};

// A call works on so many elements at most. They stay in the first-level cache.
inline constexpr int64_t kMostWeighed = 1024;

// out = weights[0] * rows[0] + weights[1] * rows[1] + ..., added in this order.
// `dtype` is floating, and `count` at most kMostWeighed. `out` is no row.
void Weigh(DataType dtype, const std::vector<const void*>& rows,
           const double* weights, int64_t count, double* out,
           VectorUnit unit = BestVectorUnit());

// `count` is at most kMostWeighed.
[[nodiscard]] Dots DotProducts(const double* a, const double* b, int64_t count,
                               VectorUnit unit = BestVectorUnit());

}  // namespace hvd

#endif  // HVD_CPU_DOT_PRODUCTS_H_
