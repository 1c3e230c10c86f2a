// SPDX-License-Identifier: Apache-2.0
// elementwise.h for integers: scales, sums that wrap around, and averages that
// do not.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "cpu/element_loops.h"
#include "cpu/elementwise.h"
#include "harness.h"
#include "typed_values.h"
#include "vector_units.h"

namespace hvd {
namespace {

TEST(integers_are_scaled_in_float64_and_truncated) {
  const std::vector<int32_t> in = {7, -7, 1, -1, 2000000000, -2000000000};
  std::vector<int32_t> out(in.size());
  const auto scale = [&](double by) {
    Pack(DataType::kInt32, DataType::kInt32, in.data(), out.data(),
         static_cast<int64_t>(in.size()), by);
  };
  scale(0.5);
  EXPECT_TRUE(
      (out == std::vector<int32_t>{3, -3, 0, 0, 1000000000, -1000000000}));
  // Beyond the type: its nearest value, on every machine.
  scale(4.0);
  EXPECT_TRUE((out == std::vector<int32_t>{28, -28, 4, -4, 2147483647,
                                           -2147483647 - 1}));
  const int64_t large = std::numeric_limits<int64_t>::max() - 1;
  int64_t same = 0;
  Pack(DataType::kInt64, DataType::kInt64, &large, &same, 1, 1.0);
  EXPECT_EQ(same, large);
  Pack(DataType::kInt64, DataType::kInt64, &large, &same, 1, 2.0);
  EXPECT_EQ(same, std::numeric_limits<int64_t>::max());
  const uint8_t byte = 200;
  uint8_t scaled = 0;
  Pack(DataType::kUint8, DataType::kUint8, &byte, &scaled, 1, -1.0);
  EXPECT_EQ(scaled, 0);
}

TEST(integer_sums_wrap_around) {
  const int32_t most = std::numeric_limits<int32_t>::max(), one = 1;
  int32_t sum = 0;
  ReduceBlocks({DataType::kInt32, ReduceOp::kSum}, {&most, &one}, &sum, 1);
  EXPECT_EQ(sum, std::numeric_limits<int32_t>::min());
  const uint16_t top = 0xffff;
  uint16_t product = 0;
  ReduceBlocks({DataType::kUint16, ReduceOp::kProduct}, {&top, &top}, &product,
               1);
  EXPECT_EQ(product, 1);
  const int64_t a = -7, b = 0;
  int64_t average = 0;
  ReduceBlocks({DataType::kInt64, ReduceOp::kAverage}, {&a, &b}, &average, 1);
  EXPECT_EQ(average, -3);
}

TEST(integer_averages_do_not_wrap_around) {
  const uint8_t a = 200, b = 201;
  uint8_t average = 0;
  ReduceBlocks({DataType::kUint8, ReduceOp::kAverage}, {&a, &b}, &average, 1);
  EXPECT_EQ(average, 200);
  // Scaled beyond the type it is the type's largest value, as elsewhere.
  ReduceBlocks({DataType::kUint8, ReduceOp::kAverage, 2.0}, {&a, &b}, &average,
               1);
  EXPECT_EQ(average, 255);
  const int32_t low = std::numeric_limits<int32_t>::min(), high = low + 4;
  int32_t middle = 0;
  ReduceBlocks({DataType::kInt32, ReduceOp::kAverage}, {&low, &high}, &middle,
               1);
  EXPECT_EQ(middle, low + 2);
}

void ExpectTruncatedQuotients(DataType dtype, int64_t ranks, VectorUnit unit,
                              const std::vector<int64_t>& values) {
  std::vector<char> sums(values.size() * SizeOf(dtype)), out(sums.size());
  const int64_t count = static_cast<int64_t>(values.size());
  const auto put = [&](auto type) {
    using T = decltype(type);
    const auto typed = [](std::vector<char>& bytes) {
      return reinterpret_cast<T*>(bytes.data());
    };
    for (int64_t i = 0; i < count; ++i) {
      typed(sums)[i] = static_cast<T>(values[static_cast<size_t>(i)]);
    }
    ReduceBlocks({dtype, ReduceOp::kAverage, 1.0, {ranks, {}}}, {sums.data()},
                 out.data(), count, unit);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t sum = static_cast<int64_t>(typed(sums)[i]);
      EXPECT_EQ(static_cast<int64_t>(typed(out)[i]), sum / ranks);
    }
  };
  element_loops::WithType(dtype, [&](auto type) {
    if constexpr (std::is_integral_v<decltype(type)>) put(type);
  });
}

TEST(integer_averages_are_truncated_for_any_number_of_ranks) {
  using Limits = std::numeric_limits<int64_t>;
  for (int64_t ranks : {1, 2, 3, 5, 7, 8, 10, 64, 999, 1024, 65537}) {
    std::vector<int64_t> small;
    for (int64_t i = -40; i <= 40; ++i) {
      for (int64_t near : {-1, 0, 1}) small.push_back(i * ranks + near);
    }
    std::vector<int64_t> all = small;
    for (int64_t power : {7, 8, 15, 16, 31, 32, 51, 52, 53, 54, 62}) {
      for (int64_t near : {-2, -1, 0, 1, 2}) {
        all.push_back((int64_t{1} << power) + near);
        all.push_back(-(int64_t{1} << power) + near);
        const int64_t multiple = (int64_t{1} << power) / ranks * ranks;
        all.push_back(multiple + near);
        all.push_back(-multiple + near);
      }
    }
    for (int64_t near : {0, 1, 2}) {
      all.push_back(Limits::min() + near);
      all.push_back(Limits::max() - near);
    }
    for (VectorUnit unit : VectorUnitsHere()) {
      for (DataType dtype :
           {DataType::kUint8, DataType::kInt8, DataType::kUint16,
            DataType::kInt16, DataType::kInt32, DataType::kInt64}) {
        ExpectTruncatedQuotients(dtype, ranks, unit, small);
        ExpectTruncatedQuotients(dtype, ranks, unit, all);
      }
      for (int64_t alone : all) {
        ExpectTruncatedQuotients(DataType::kInt64, ranks, unit, {alone});
      }
    }
  }
}

TEST(integers_travel_as_the_type_that_averages_are_added_in) {
  for (DataType dtype : {DataType::kUint8, DataType::kInt8, DataType::kUint16,
                         DataType::kInt16, DataType::kInt32}) {
    const DataType wire = AveragingType(dtype);
    EXPECT_TRUE(SizeOf(wire) > SizeOf(dtype));
    const double ends[] = {-1e18, -3, 0, 5, 1e18};
    for (double value : ends) {
      char wide[8] = {}, narrow[8] = {}, back[8] = {};
      PutValue(wire, wide, 0,
               wire == DataType::kInt32 ? std::clamp(value, -2e9, 2e9) : value);
      Unpack(wire, dtype, wide, narrow, 1);
      Pack(dtype, wire, narrow, back, 1, 1.0);
      EXPECT_EQ(GetValue(wire, back, 0), GetValue(dtype, narrow, 0));
      if (value == 5) EXPECT_EQ(GetValue(dtype, narrow, 0), 5);
      if (value > 5) EXPECT_TRUE(GetValue(dtype, narrow, 0) > 100);
      // What is scaled stays within the type it has.
      Pack(dtype, wire, narrow, back, 1, 1000.0);
      if (value > 5)
        EXPECT_EQ(GetValue(wire, back, 0), GetValue(dtype, narrow, 0));
    }
  }
}

}  // namespace
}  // namespace hvd
