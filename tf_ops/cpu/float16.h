// SPDX-License-Identifier: Apache-2.0
// float16 and bfloat16: conversions that round to nearest, ties to even.
//
// There are no branches. So loops over them are vectorised, without
// instructions for half precision. No float32 subnormal is formed on the way.
// So results are right in any flush-to-zero mode.
#ifndef HVD_CPU_FLOAT16_H_
#define HVD_CPU_FLOAT16_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/host_device.h"

namespace hvd {

struct Float16 {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};

// The type that arithmetic on T is done in. Values are rounded when stored.
template <typename T>
struct ComputeType {
  using type = T;
};
template <>
struct ComputeType<Float16> {
  using type = float;
};
template <>
struct ComputeType<Bfloat16> {
  using type = float;
};

namespace float16_internal {

template <typename To, typename From>
HVD_HOST_DEVICE inline To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// condition ? a : b, written with masks. Compilers would make a branch of a
// choice between an arithmetic result and another value, and would not
// vectorise it.
HVD_HOST_DEVICE inline uint32_t Choose(bool condition, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}

}  // namespace float16_internal

HVD_HOST_DEVICE inline float ToFloat(Float16 value) {
  using float16_internal::BitCast;
  using float16_internal::Choose;
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t rest = value.bits & 0x7fffu;
  // The exponents differ by 112. For infinity and NaN they differ by another
  // 112.
  const uint32_t normal =
      (rest << 13) + (rest >= 0x7c00u ? 224u << 23 : 112u << 23);
  const uint32_t subnormal = BitCast<uint32_t>(
      static_cast<float>(static_cast<int32_t>(rest)) * 0x1p-24f);
  return BitCast<float>(sign | Choose(rest < 0x0400u, subnormal, normal));
}

HVD_HOST_DEVICE inline float ToFloat(Bfloat16 value) {
  return float16_internal::BitCast<float>(static_cast<uint32_t>(value.bits)
                                          << 16);
}

HVD_HOST_DEVICE inline Float16 ToFloat16(float value) {
  using float16_internal::BitCast;
  using float16_internal::Choose;
  const uint32_t bits = BitCast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t rest = bits & 0x7fffffffu;
  // A carry of the significand gives the next exponent, or infinity.
  const uint32_t normal =
      (rest - (112u << 23) + 0xfffu + (rest >> 13 & 1u)) >> 13;
  // float32 at 0.5 has the same spacing as float16 at 0, so the sum rounds.
  const float sum = BitCast<float>(Choose(rest < 0x38800000u, rest, 0u)) + 0.5f;
  const uint32_t subnormal = BitCast<uint32_t>(sum) - 0x3f000000u;
  // The first bits of a NaN's payload stay. A signalling NaN becomes quiet.
  const uint32_t special =
      rest > 0x7f800000u ? 0x7e00u | (rest >> 13 & 0x1ffu) : 0x7c00u;
  const uint32_t finite = Choose(rest < 0x38800000u, subnormal, normal);
  return {static_cast<uint16_t>(sign |
                                Choose(rest >= 0x47800000u, special, finite))};
}

HVD_HOST_DEVICE inline Bfloat16 ToBfloat16(float value) {
  const uint32_t bits = float16_internal::BitCast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const uint32_t nan = bits >> 16 | 0x40u;
  return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan
                                                                   : rounded)};
}

// A float32 that rounds to any narrower type as `value` itself does. If it is
// not exact, its last bit is set ("round to odd"). So it is never a tie.
HVD_HOST_DEVICE inline float ToFloatForRounding(double value) {
  using float16_internal::BitCast;
  const float nearest = static_cast<float>(value);
  const double back = static_cast<double>(nearest);
  if (back == value || value != value) return nearest;
  uint32_t bits = BitCast<uint32_t>(nearest);
  if (bits & 1u) return nearest;
  const bool rounded_up = (back > value) == (value > 0);
  return BitCast<float>(rounded_up ? bits - 1u : bits + 1u);
}

// To and From: float, double, Float16 or Bfloat16.
template <typename To, typename From>
HVD_HOST_DEVICE inline To ConvertFloat(From value) {
  constexpr bool kFromNarrow =
      std::is_same_v<From, Float16> || std::is_same_v<From, Bfloat16>;
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (kFromNarrow) {
    return ConvertFloat<To>(ToFloat(value));
  } else if constexpr (std::is_same_v<To, Float16> ||
                       std::is_same_v<To, Bfloat16>) {
    float single;
    if constexpr (std::is_same_v<From, double>) {
      single = ToFloatForRounding(value);
    } else {
      single = value;
    }
    if constexpr (std::is_same_v<To, Float16>) {
      return ToFloat16(single);
    } else {
      return ToBfloat16(single);
    }
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace hvd

#endif  // HVD_CPU_FLOAT16_H_
