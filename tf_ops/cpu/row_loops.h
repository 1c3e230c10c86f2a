// SPDX-License-Identifier: Apache-2.0
// Loops that add rows to rows of sums, for code compiled for a VectorUnit.
#ifndef HVD_CPU_ROW_LOOPS_H_
#define HVD_CPU_ROW_LOOPS_H_

#include <cstdint>
#include <cstring>
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

// Usual lengths of short rows are constants, so that a row is one instruction
// or a few.
template <int64_t kLength>
using Constant = std::integral_constant<int64_t, kLength>;

// Calls visit(length) with a Constant or an int64_t.
template <typename Visit>
void WithLength(int64_t length, Visit visit) {
  if (length == 1) return visit(Constant<1>());
  if (length == 4) return visit(Constant<4>());
  if (length == 8) return visit(Constant<8>());
  if (length == 16) return visit(Constant<16>());
  visit(length);
}

// Adds kCount elements, by vector instructions. A compiler that unrolls a loop
// of so few would take them one by one.
template <int64_t kCount, typename C>
void AddVector(const C* row, C* sums) {
  // Integers wrap around.
  using Element =
      typename std::conditional_t<std::is_integral_v<C>, std::make_unsigned<C>,
                                  std::enable_if<true, C>>::type;
  using Vector [[gnu::vector_size(kCount * sizeof(C))]] = Element;
  Vector a, b;
  std::memcpy(&a, row, sizeof(a));
  std::memcpy(&b, sums, sizeof(b));
  b += a;
  std::memcpy(sums, &b, sizeof(b));
}

// Adds `count` elements to `sums`. Blocks have a constant length, so that their
// loops become a few vector instructions.
template <typename T, typename C>
void AddRow(const T* row, int64_t count, C* sums) {
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
template <typename T, typename C, int64_t kCount>
void AddRow(const T* row, Constant<kCount> count, C* sums) {
  if constexpr (kCount == 1) {
    *sums = element_loops::Add()(*sums, Widened<C>(*row));
  } else if constexpr (std::is_same_v<T, C>) {
    AddVector<kCount>(row, sums);
  } else {
    AddRow(row, int64_t{count}, sums);
  }
}

}  // namespace row_loops
}  // namespace hvd

#endif  // HVD_CPU_ROW_LOOPS_H_
