// SPDX-License-Identifier: Apache-2.0
// float16.h: all values of the 16-bit floats, and how others are rounded.
#include "cpu/float16.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "harness.h"

namespace hvd {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Reference values of all 2^16 bit patterns: by definition, in float64.
double HalfValue(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f;
  const int significand = bits & 0x3ff;
  double value;
  if (exponent == 0x1f) {
    value = significand ? std::nan("") : HUGE_VAL;
  } else if (exponent == 0) {
    value = std::ldexp(significand, -24);
  } else {
    value = std::ldexp(1024 + significand, exponent - 25);
  }
  return bits & 0x8000 ? -value : value;
}

double BrainValue(uint16_t bits) {
  const int exponent = bits >> 7 & 0xff;
  const int significand = bits & 0x7f;
  double value;
  if (exponent == 0xff) {
    value = significand ? std::nan("") : HUGE_VAL;
  } else if (exponent == 0) {
    value = std::ldexp(significand, -133);
  } else {
    value = std::ldexp(128 + significand, exponent - 134);
  }
  return bits & 0x8000 ? -value : value;
}

// `bits` is a finite value >= 0 whose successor may be infinity. Everything up
// to half the step rounds to the even one of the two.
template <typename Narrow, typename Wide>
void CheckStep(uint16_t bits, double value, double step) {
  const uint16_t next = bits + 1, even = bits & 1 ? next : bits;
  const Wide middle = static_cast<Wide>(value + step / 2);
  const Wide infinity = std::numeric_limits<Wide>::infinity();
  EXPECT_EQ(ConvertFloat<Narrow>(static_cast<Wide>(value)).bits, bits);
  EXPECT_EQ(ConvertFloat<Narrow>(middle).bits, even);
  EXPECT_EQ(ConvertFloat<Narrow>(std::nextafter(middle, Wide(0))).bits, bits);
  EXPECT_EQ(ConvertFloat<Narrow>(std::nextafter(middle, infinity)).bits, next);
  EXPECT_EQ(ConvertFloat<Narrow>(-middle).bits, even | 0x8000);
}

TEST(float16_has_the_values_of_ieee754) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const Float16 half{static_cast<uint16_t>(bits)};
    const double expected = HalfValue(half.bits);
    const float value = ToFloat(half);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(ToFloat(ToFloat16(value))));
    } else {
      EXPECT_EQ(value, expected);
      EXPECT_EQ(std::signbit(value), std::signbit(expected));
      EXPECT_EQ(ToFloat16(value).bits, bits);
    }
  }
}

TEST(float16_rounds_to_nearest_even) {
  for (int bits = 0; bits < 0x7c00; ++bits) {
    const double value = HalfValue(bits);
    const double next = bits == 0x7bff ? 65536 : HalfValue(bits + 1);
    CheckStep<Float16, float>(bits, value, next - value);
    CheckStep<Float16, double>(bits, value, next - value);
  }
  EXPECT_EQ(ToFloat16(kInf).bits, 0x7c00);
  EXPECT_EQ(ToFloat16(-kInf).bits, 0xfc00);
  EXPECT_EQ(ToFloat16(1e30f).bits, 0x7c00);
  EXPECT_EQ(ToFloat16(-0.0f).bits, 0x8000);
  EXPECT_EQ(ToFloat16(1e-40f).bits, 0);
}

TEST(bfloat16_has_the_values_of_float32_cut) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const Bfloat16 brain{static_cast<uint16_t>(bits)};
    const double expected = BrainValue(brain.bits);
    const float value = ToFloat(brain);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(ToFloat(ToBfloat16(value))));
    } else {
      EXPECT_EQ(value, expected);
      EXPECT_EQ(ToBfloat16(value).bits, bits);
    }
  }
}

TEST(bfloat16_rounds_to_nearest_even) {
  for (int bits = 0; bits < 0x7f80; ++bits) {
    const double value = BrainValue(bits);
    const double next =
        bits == 0x7f7f ? std::ldexp(1, 128) : BrainValue(bits + 1);
    CheckStep<Bfloat16, float>(bits, value, next - value);
    CheckStep<Bfloat16, double>(bits, value, next - value);
  }
  // A NaN whose payload lies in the lost bits stays one.
  const auto nan = float16_internal::BitCast<float>(0x7f800001u);
  EXPECT_TRUE(std::isnan(ToFloat(ToBfloat16(nan))));
  EXPECT_TRUE(std::isnan(ToFloat(ToFloat16(nan))));
}

}  // namespace
}  // namespace hvd
