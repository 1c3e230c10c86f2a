// SPDX-License-Identifier: Apache-2.0
// Loops that add rows to rows of sums, for code compiled for a VectorUnit.
#ifndef HVD_CPU_ROW_LOOPS_H_
#define HVD_CPU_ROW_LOOPS_H_

#include <cstdint>
#include <type_traits>

#include "cpu/element_loops.h"
#include "cpu/float16.h"
#include "cpu/independent_iterations.h"

namespace hvd {
namespace row_loops {

// What an empty sum of C is. Adding it changes no bit of any value. That holds
// for -0.0, and would not for 0.0.
template <typename C>
inline constexpr C kNothing = std::is_floating_point_v<C> ? C(-0.0) : C(0);

// So many elements are worked on in registers.
inline constexpr int64_t kBlock = 16;

template <typename C, typename T>
C Widened(T value) {
  if constexpr (std::is_same_v<C, T>) {
    return value;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<C>(value);
  } else {
    return ConvertFloat<C>(value);
  }
}

// Adds `count` elements to `sums`. Blocks have a constant length, so that their
// loops become a few vector instructions. Tables of weights have one element in
// a row, for which a loop is long.
template <typename T, typename C>
void AddRow(const T* row, int64_t count, C* sums) {
  if (count == 1) {
    *sums = element_loops::Add()(*sums, Widened<C>(*row));
    return;
  }
  const auto add = [&](int64_t begin, int64_t length) {
    const T* const in = row + begin;
    C* const out = sums + begin;
    HVD_INDEPENDENT_ITERATIONS
    for (int64_t i = 0; i < length; ++i) {
      out[i] = element_loops::Add()(out[i], Widened<C>(in[i]));
    }
  };
  int64_t at = 0;
  for (; at + kBlock <= count; at += kBlock) add(at, kBlock);
  if (at < count) add(at, count - at);
}

}  // namespace row_loops
}  // namespace hvd

#endif  // HVD_CPU_ROW_LOOPS_H_
