// SPDX-License-Identifier: Apache-2.0
// Sample values of every dtype, and what reducing them must give.
#ifndef HVD_TESTS_CORE_TYPED_VALUES_H_
#define HVD_TESTS_CORE_TYPED_VALUES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "core/types.h"
#include "cpu/float16.h"
#include "harness.h"

namespace hvd {

// All but bool.
inline const std::vector<DataType> kReducedTypes = {
    DataType::kUint8,   DataType::kInt8,     DataType::kUint16,
    DataType::kInt16,   DataType::kInt32,    DataType::kInt64,
    DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32,
    DataType::kFloat64};
// The types of cases that many transports run. elementwise_test has the
// arithmetic of all types. What sanitizers look for depends on an element's
// size at most.
inline const std::vector<DataType> kContractTypes =
    test::kIsSanitized
        ? std::vector<DataType>{DataType::kInt8, DataType::kBfloat16,
                                DataType::kFloat32}
        : kReducedTypes;
// The thread sanitizer makes one cost 20 times as much.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kElementsAreSlow = true;
#else
inline constexpr bool kElementsAreSlow = false;
#endif
inline const std::vector<ReduceOp> kReduceOps = {
    ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
    ReduceOp::kProduct};

// Calls visit(T()) with the C++ type that holds `dtype`.
template <typename Visit>
void VisitType(DataType dtype, Visit visit) {
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

// Calls visit(from_type, to_type, From(), To()) for each two floating types.
template <typename Visit>
void VisitFloatingPairs(Visit visit) {
  constexpr DataType kTypes[] = {DataType::kFloat16, DataType::kBfloat16,
                                 DataType::kFloat32, DataType::kFloat64};
  for (const DataType from_type : kTypes) {
    for (const DataType to_type : kTypes) {
      VisitType(from_type, [&](auto from) {
        VisitType(to_type, [&](auto to) {
          if constexpr (!std::is_integral_v<decltype(from)> &&
                        !std::is_integral_v<decltype(to)>) {
            visit(from_type, to_type, from, to);
          }
        });
      });
    }
  }
}

// Element i of `data`, which need not be aligned.
inline double GetValue(DataType dtype, const void* data, int64_t i) {
  double value = 0;
  VisitType(dtype, [&](auto element) {
    std::memcpy(&element, static_cast<const char*>(data) + i * sizeof(element),
                sizeof(element));
    if constexpr (std::is_arithmetic_v<decltype(element)>) {
      value = static_cast<double>(element);
    } else {
      value = ToFloat(element);
    }
  });
  return value;
}

// Integers: towards zero.
inline void PutValue(DataType dtype, void* data, int64_t i, double value) {
  VisitType(dtype, [&](auto element) {
    if constexpr (std::is_arithmetic_v<decltype(element)>) {
      element = static_cast<decltype(element)>(value);
    } else {
      element = ConvertFloat<decltype(element)>(value);
    }
    std::memcpy(static_cast<char*>(data) + i * sizeof(element), &element,
                sizeof(element));
  });
}

// Small enough for 8 ranks to stay within every type, unless scaled products.
inline double SampleValue(DataType dtype, ReduceOp op, int rank, int64_t i) {
  const int64_t mix = rank * 5 + i * 3 + i / 7;
  if (op == ReduceOp::kProduct) return rank < 5 ? 1 + mix % 2 : 1;
  const bool is_unsigned =
      dtype == DataType::kUint8 || dtype == DataType::kUint16;
  const double value = static_cast<double>(mix % 9);
  if (is_unsigned) return std::min(value, 6.0);
  if (!IsFloating(dtype)) return value - 4;
  return (value - 3) * 0.5;
}

// Largest relative error of one rounding, with room for a few of them.
inline double Epsilon(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return 2e-3;
    case DataType::kBfloat16:
      return 1.6e-2;
    case DataType::kFloat32:
      return 5e-7;
    case DataType::kFloat64:
      return 1e-15;
    default:
      return 0;
  }
}

// A whole number as an integer type holds it, which may wrap around.
inline double Wrapped(DataType dtype, double value) {
  VisitType(dtype, [&](auto element) {
    if constexpr (std::is_integral_v<decltype(element)>) {
      element = static_cast<decltype(element)>(static_cast<int64_t>(value));
      value = static_cast<double>(element);
    }
  });
  return value;
}

// Element i of an allreduce of SampleValue over ranks 0 to ranks - 1, in
// float64, which is exact for the samples of integers. `absent`: ranks that
// have joined, ascending.
inline double ExpectedReduction(DataType dtype, DataType wire_dtype,
                                ReduceOp op, int ranks, int64_t i,
                                double prescale, double postscale,
                                const std::vector<int>& absent = {}) {
  const auto round = [&](double value) {
    return IsFloating(dtype) ? value : std::trunc(value);
  };
  const bool is_unsigned =
      dtype == DataType::kUint8 || dtype == DataType::kUint16;
  double result = 0;
  bool is_first = true;
  for (int rank = 0; rank < ranks; ++rank) {
    if (std::binary_search(absent.begin(), absent.end(), rank)) continue;
    double value = round(SampleValue(dtype, op, rank, i) * prescale);
    if (wire_dtype != dtype) {
      char space[8];
      PutValue(wire_dtype, space, 0, value);
      value = GetValue(wire_dtype, space, 0);
    }
    if (is_unsigned) value = std::max(value, 0.0);
    if (std::exchange(is_first, false)) {
      result = value;
    } else if (op == ReduceOp::kMin) {
      result = std::min(result, value);
    } else if (op == ReduceOp::kMax) {
      result = std::max(result, value);
    } else if (op == ReduceOp::kProduct) {
      result *= value;
    } else {
      result += value;
    }
    if (op != ReduceOp::kAverage) result = Wrapped(dtype, result);
  }
  if (op == ReduceOp::kAverage) result = round(result / ranks);
  return round(result * postscale);
}

}  // namespace hvd

#endif  // HVD_TESTS_CORE_TYPED_VALUES_H_
