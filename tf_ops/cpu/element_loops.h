// SPDX-License-Identifier: Apache-2.0
// Loops over a few elements of one type: convert, scale, add, divide.
//
// For code that works tile by tile, compiled for a VectorUnit. Loops are told
// that elements do not depend on each other (HVD_INDEPENDENT_ITERATIONS). That
// holds although an output may be an input. Tiles stay in the first-level
// cache.
#ifndef HVD_CPU_ELEMENT_LOOPS_H_
#define HVD_CPU_ELEMENT_LOOPS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/types.h"
#include "cpu/float16.h"
#include "cpu/independent_iterations.h"

namespace hvd {
namespace element_loops {

// Float16 and Bfloat16 are computed in float.
template <typename T>
using Compute = typename ComputeType<T>::type;

// The type that averages of T are added in.
template <typename T>
struct AverageType {
  using type = Compute<T>;
};
template <>
struct AverageType<uint8_t> {
  using type = int32_t;
};
template <>
struct AverageType<int8_t> {
  using type = int32_t;
};
template <>
struct AverageType<uint16_t> {
  using type = int32_t;
};
template <>
struct AverageType<int16_t> {
  using type = int32_t;
};
template <>
struct AverageType<int32_t> {
  using type = int64_t;
};
template <typename T>
using Averaging = typename AverageType<T>::type;

// Calls visit(T()) with the element type of `dtype`. A bool is a byte.
template <typename Visit>
void WithType(DataType dtype, Visit visit) {
  switch (dtype) {
    case DataType::kBool:
    case DataType::kUint8:
      return visit(uint8_t());
    case DataType::kInt8:
      return visit(int8_t());
    case DataType::kUint16:
      return visit(uint16_t());
    case DataType::kInt16:
      return visit(int16_t());
    case DataType::kInt32:
      return visit(int32_t());
    case DataType::kInt64:
      return visit(int64_t());
    case DataType::kFloat16:
      return visit(Float16());
    case DataType::kBfloat16:
      return visit(Bfloat16());
    case DataType::kFloat32:
      return visit(float());
    case DataType::kFloat64:
      return visit(double());
  }
}

// --- One element ---

// Truncates. What T cannot hold becomes its nearest value. NaN becomes 0.
template <typename T>
T Saturate(double value) {
  constexpr double kLowest =
      static_cast<double>(std::numeric_limits<T>::lowest());
  // The first double that is too large. It is exact. As a double, max() of
  // int64 would not be.
  constexpr double kBeyond =
      2.0 * static_cast<double>(std::numeric_limits<T>::max() / 2 + 1);
  if (!(value >= kLowest)) {
    return value < kLowest ? std::numeric_limits<T>::lowest() : T();
  }
  if (value >= kBeyond) return std::numeric_limits<T>::max();
  return static_cast<T>(value);
}

// value * scale, as T computes.
template <typename T>
T Scaled(T value, double scale) {
  if constexpr (std::is_integral_v<T>) {
    return Saturate<T>(static_cast<double>(value) * scale);
  } else {
    return value * static_cast<T>(scale);
  }
}

// The unsigned type in which T's arithmetic wraps around. A narrower one would
// be widened to a signed int on the way.
template <typename T>
using Wrapping = std::common_type_t<std::make_unsigned_t<T>, unsigned>;

struct Add {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) +
                            static_cast<Wrapping<T>>(b));
    } else {
      return a + b;
    }
  }
};
// --- Some elements ---

template <typename From, typename To>
void Convert(const From* in, To* out, int64_t count) {
  if constexpr (std::is_same_v<From, To>) {
    if (in != out)
      std::memcpy(out, in, static_cast<size_t>(count) * sizeof(To));
  } else if constexpr (std::is_integral_v<From>) {
    using Wider = std::conditional_t<(sizeof(From) > sizeof(To)), From, To>;
    constexpr Wider kLowest = std::numeric_limits<To>::lowest();
    constexpr Wider kHighest = std::numeric_limits<To>::max();
    HVD_INDEPENDENT_ITERATIONS
    for (int64_t i = 0; i < count; ++i) {
      out[i] = static_cast<To>(
          std::min(std::max(static_cast<Wider>(in[i]), kLowest), kHighest));
    }
  } else {
    HVD_INDEPENDENT_ITERATIONS
    for (int64_t i = 0; i < count; ++i) out[i] = ConvertFloat<To>(in[i]);
  }
}

template <typename T>
void Scale(const T* in, T* out, int64_t count, double scale) {
  HVD_INDEPENDENT_ITERATIONS
  for (int64_t i = 0; i < count; ++i) out[i] = Scaled(in[i], scale);
}

template <typename T, typename Operator>
void Combine(const T* a, const T* b, T* out, int64_t count, Operator op) {
  HVD_INDEPENDENT_ITERATIONS
  for (int64_t i = 0; i < count; ++i) out[i] = op(a[i], b[i]);
}

// Whether a double holds each value, and its quotient on the same side of every
// integer. A quotient by n that is no integer is at least 1/n away from one.
template <typename T>
bool DivisibleAsDoubles(const T* values, int64_t count) {
  bool all = true;
  if constexpr (sizeof(T) == 8) {
    constexpr T kMost = T{1} << 52;
    HVD_INDEPENDENT_ITERATIONS
    for (int64_t i = 0; i < count; ++i) {
      all &= (values[i] <= kMost) & (values[i] >= -kMost);
    }
  }
  return all;
}

// Truncates. A processor's own division of integers takes one at a time, so it
// is left to the values that need it.
template <typename T>
void DivideIntegers(T* values, int64_t count, int64_t ranks) {
  if ((ranks & (ranks - 1)) == 0) {
    const int shift = __builtin_ctzll(static_cast<uint64_t>(ranks));
    HVD_INDEPENDENT_ITERATIONS
    for (int64_t i = 0; i < count; ++i) {
      // A shift alone would round down.
      const int64_t up = values[i] < 0 ? ranks - 1 : 0;
      values[i] = static_cast<T>((values[i] + up) >> shift);
    }
  } else if (DivisibleAsDoubles(values, count)) {
    const double divisor = static_cast<double>(ranks);
    HVD_INDEPENDENT_ITERATIONS
    for (int64_t i = 0; i < count; ++i) {
      values[i] = static_cast<T>(static_cast<double>(values[i]) / divisor);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      values[i] = static_cast<T>(static_cast<int64_t>(values[i]) / ranks);
    }
  }
}

template <typename T>
void Divide(T* values, int64_t count, int64_t ranks) {
  if constexpr (std::is_integral_v<T>) {
    DivideIntegers(values, count, ranks);
  } else if ((ranks & (ranks - 1)) == 0) {
    // A power of two has an exact inverse, and a product takes less time.
    const T inverse = static_cast<T>(1) / static_cast<T>(ranks);
    for (int64_t i = 0; i < count; ++i) values[i] *= inverse;
  } else {
    const T divisor = static_cast<T>(ranks);
    for (int64_t i = 0; i < count; ++i) values[i] /= divisor;
  }
}

// The values of `in` as type C, which is computed in. If they have another
// type, they are converted into `space`.
template <typename T, typename C>
const C* Load(const T* in, C* space, int64_t count) {
  if constexpr (std::is_same_v<T, C>) {
    return in;
  } else {
    Convert(in, space, count);
    return space;
  }
}

}  // namespace element_loops
}  // namespace hvd

#endif  // HVD_CPU_ELEMENT_LOOPS_H_
