// SPDX-License-Identifier: Apache-2.0
// Weighted sums and dot products: numbers, and the same bits on every vector
// unit. And the tree of an Adasum, as far as it is numbers.
#include "cpu/dot_products.h"

#include <cstring>
#include <vector>

#include "harness.h"
#include "transport/collectives/adasum_tree.h"
#include "typed_values.h"
#include "vector_units.h"

namespace hvd {
namespace {

double Value(int64_t i, int64_t of) {
  return std::sin(static_cast<double>(i * 7 + of)) + 0.3;
}

TEST(dot_products_are_right_and_have_the_same_bits) {
  for (int64_t count : {0, 1, 2, 3, 7, 8, 9, 64, 100, 1000, 1023, 1024}) {
    std::vector<double> a, b;
    long double aa = 0, ab = 0, bb = 0;
    for (int64_t i = 0; i < count; ++i) {
      a.push_back(Value(i, 1));
      b.push_back(Value(i, 2));
      aa += static_cast<long double>(a[i]) * a[i];
      ab += static_cast<long double>(a[i]) * b[i];
      bb += static_cast<long double>(b[i]) * b[i];
    }
    const Dots first =
        DotProducts(a.data(), b.data(), count, VectorUnitsHere()[0]);
    EXPECT_NEAR(first.aa, static_cast<double>(aa), 1e-12);
    EXPECT_NEAR(first.ab, static_cast<double>(ab), 1e-12);
    EXPECT_NEAR(first.bb, static_cast<double>(bb), 1e-12);
    for (VectorUnit unit : VectorUnitsHere()) {
      const Dots dots = DotProducts(a.data(), b.data(), count, unit);
      EXPECT_EQ(std::memcmp(&dots, &first, sizeof(dots)), 0);
    }
  }
}

TEST(weighed_sums_of_every_floating_type) {
  const double weights[] = {0.5, -2.0, 3.25};
  for (DataType dtype : {DataType::kFloat16, DataType::kBfloat16,
                         DataType::kFloat32, DataType::kFloat64}) {
    for (int64_t count : {1, 13, 1024}) {
      std::vector<std::vector<char>> data;
      std::vector<const void*> rows;
      for (int64_t r = 0; r < 3; ++r) {
        data.emplace_back(static_cast<size_t>(count) * SizeOf(dtype));
        for (int64_t i = 0; i < count; ++i) {
          PutValue(dtype, data.back().data(), i, Value(i, r));
        }
      }
      for (const std::vector<char>& row : data) rows.push_back(row.data());
      for (VectorUnit unit : VectorUnitsHere()) {
        std::vector<double> out(static_cast<size_t>(count));
        Weigh(dtype, rows, weights, count, out.data(), unit);
        for (int64_t i = 0; i < count; ++i) {
          double wanted = weights[0] * GetValue(dtype, rows[0], i);
          wanted += weights[1] * GetValue(dtype, rows[1], i);
          wanted += weights[2] * GetValue(dtype, rows[2], i);
          if (!EXPECT_EQ(out[i], wanted)) break;
        }
      }
    }
  }
}

TEST(neighbours_are_combined_level_by_level) {
  EXPECT_EQ(AdasumLevels(1), 0);
  EXPECT_EQ(AdasumLevels(2), 1);
  EXPECT_EQ(AdasumLevels(5), 3);
  EXPECT_EQ(AdasumLevels(8), 3);
  EXPECT_EQ(AdasumPairs(7, 0).size(), 3);  // rank 6 passes up
  const std::vector<AdasumPair> second = AdasumPairs(7, 1);
  ASSERT_EQ(second.size(), 2);
  EXPECT_EQ(second[1].begin, 4);
  EXPECT_EQ(second[1].middle, 6);
  EXPECT_EQ(second[1].end, 7);
  EXPECT_EQ(AdasumPairs(7, 2).size(), 1);
}

TEST(what_has_cancelled_counts_as_zero) {
  // Ranks 0 and 1 have opposite vectors, but for rounding.
  double weights[] = {1.5, 1.5, 1.0};
  double lengths[] = {2.0, 2.0, 0.0};
  const double rest = 1e-15;
  CombinePair({0, 2, 3}, {rest * rest, rest, 9.0}, weights, lengths);
  EXPECT_EQ(weights[0], 1.5);
  EXPECT_EQ(weights[1], 1.5);
  EXPECT_NEAR(weights[2], 1.0, 1e-15);
  EXPECT_EQ(lengths[2], 3.0);
}

}  // namespace
}  // namespace hvd
