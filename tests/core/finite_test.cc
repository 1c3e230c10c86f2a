// SPDX-License-Identifier: Apache-2.0
// NaN and infinity are found wherever they are. Nothing else is taken for them.
#include "cpu/finite.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "harness.h"
#include "typed_values.h"

namespace hvd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const DataType kFloatingTypes[] = {DataType::kFloat16, DataType::kBfloat16,
                                   DataType::kFloat32, DataType::kFloat64};
const DataType kIntegerTypes[] = {
    DataType::kBool,  DataType::kUint8, DataType::kInt8, DataType::kUint16,
    DataType::kInt16, DataType::kInt32, DataType::kInt64};

std::vector<char> Ones(DataType dtype, int64_t count) {
  std::vector<char> values(static_cast<size_t>(count) * SizeOf(dtype));
  for (int64_t i = 0; i < count; ++i) PutValue(dtype, values.data(), i, 1.0);
  return values;
}

TEST(one_bad_element_is_found_at_every_place) {
  for (DataType dtype : kFloatingTypes) {
    for (int64_t count : {1, 7, 130}) {
      for (int64_t at = 0; at < count; ++at) {
        for (double bad :
             {std::nan(""), -std::nan(""), kInfinity, -kInfinity}) {
          std::vector<char> values = Ones(dtype, count);
          EXPECT_TRUE(AllFinite(dtype, values.data(), count));
          PutValue(dtype, values.data(), at, bad);
          EXPECT_TRUE(!AllFinite(dtype, values.data(), count));
        }
      }
    }
  }
}

// Every one of the 65536 values of the narrow types.
TEST(narrow_types_agree_with_the_standard_library) {
  for (DataType dtype : {DataType::kFloat16, DataType::kBfloat16}) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const auto word = static_cast<uint16_t>(bits);
      char value[8] = {};  // as long as what GetValue may read
      std::memcpy(value, &word, sizeof(word));
      EXPECT_EQ(AllFinite(dtype, value, 1),
                std::isfinite(GetValue(dtype, value, 0)));
    }
  }
}

TEST(largest_and_smallest_values_are_finite) {
  const std::vector<float> floats = {
      std::numeric_limits<float>::max(), std::numeric_limits<float>::lowest(),
      std::numeric_limits<float>::denorm_min(), -0.0f};
  EXPECT_TRUE(AllFinite(DataType::kFloat32, floats.data(), 4));
  const std::vector<double> doubles = {
      std::numeric_limits<double>::max(), std::numeric_limits<double>::lowest(),
      std::numeric_limits<double>::denorm_min(), -0.0};
  EXPECT_TRUE(AllFinite(DataType::kFloat64, doubles.data(), 4));
}

TEST(integers_are_finite_whatever_their_bits) {
  const std::vector<char> ones(64 * 8, static_cast<char>(0xff));
  for (DataType dtype : kIntegerTypes) {
    EXPECT_TRUE(AllFinite(dtype, ones.data(), 64));
  }
}

TEST(on_the_wire_the_scaled_and_cast_value_counts) {
  constexpr int64_t kCount = 3000;  // several chunks, the last not full
  for (int64_t at : {int64_t{0}, int64_t{1024}, kCount - 1}) {
    std::vector<char> values = Ones(DataType::kFloat32, kCount);
    PutValue(DataType::kFloat32, values.data(), at, 65504.0);
    const auto passes = [&](DataType wire_dtype, double prescale) {
      return AllFiniteOnWire(DataType::kFloat32, wire_dtype, values.data(),
                             kCount, prescale);
    };
    EXPECT_TRUE(passes(DataType::kFloat32, 1.0));
    EXPECT_TRUE(passes(DataType::kFloat16, 1.0));
    EXPECT_TRUE(!passes(DataType::kFloat16, 2.0));
    EXPECT_TRUE(passes(DataType::kBfloat16, 2.0));
    EXPECT_TRUE(!passes(DataType::kFloat32, 1e38));
  }
}

TEST(nothing_is_finite) {
  EXPECT_TRUE(AllFinite(DataType::kFloat32, nullptr, 0));
  EXPECT_TRUE(
      AllFiniteOnWire(DataType::kFloat32, DataType::kFloat16, nullptr, 0, 0.5));
}

}  // namespace
}  // namespace hvd
