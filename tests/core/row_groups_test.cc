// SPDX-License-Identifier: Apache-2.0
// Rows of equal id are added up, against maps of ids.
#include "cpu/row_groups.h"

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "harness.h"
#include "row_sums.h"
#include "typed_values.h"
#include "vector_units.h"

namespace hvd {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

// Ids as an id type has them.
std::vector<char> AsBytes(DataType id_type, const std::vector<int64_t>& ids) {
  std::vector<char> bytes(ids.size() * SizeOf(id_type));
  for (size_t i = 0; i < ids.size(); ++i) {
    if (id_type == DataType::kInt32) {
      const auto id = static_cast<int32_t>(ids[i]);
      std::memcpy(&bytes[i * sizeof(id)], &id, sizeof(id));
    } else {
      std::memcpy(&bytes[i * sizeof(ids[i])], &ids[i], sizeof(ids[i]));
    }
  }
  return bytes;
}

// Lists that must be grouped: none, one, equal ones, sorted, reversed, far
// apart, negative, random with many duplicates.
std::vector<std::vector<int64_t>> Lists(DataType id_type) {
  std::vector<std::vector<int64_t>> lists = {{},
                                             {7},
                                             {5, 5, 5, 5, 5},
                                             {1, 2, 3, 9},
                                             {9, 3, 2, 1},
                                             {1, 2, 2, 3},
                                             {0, 70000, 3, 70000, 0},
                                             {-3, 4, -3, 0, 1 << 30}};
  if (id_type == DataType::kInt64) {
    lists.push_back({kHuge, 0, -kHuge - 1, kHuge, 1});
    lists.push_back({int64_t{1} << 40, 3, int64_t{1} << 40, 3});
  }
  std::mt19937_64 random(5);
  for (int64_t spread : {3, 200, 5000, 3000000}) {
    std::vector<int64_t>& list = lists.emplace_back();
    for (int i = 0; i < 1500; ++i) {
      list.push_back(static_cast<int64_t>(random() % spread));
    }
  }
  return lists;
}

void CheckGroups(DataType id_type, const std::vector<int64_t>& ids,
                 DataType dtype, int64_t row_count) {
  const auto count = static_cast<int64_t>(ids.size());
  const std::vector<char> values = Samples(dtype, 1, count * row_count);
  Sums sums;
  for (int64_t i = 0; i < count; ++i) {
    AddTo(&sums, ids[i], row_count, dtype, values.data(), i);
  }
  const RowGroups groups =
      GroupRows(id_type, AsBytes(id_type, ids).data(), count);
  ASSERT_EQ(groups.ids.size(), sums.size());
  auto id = groups.ids.begin();
  for (const auto& [expected, sum] : sums) EXPECT_EQ(*id++, expected);
  for (VectorUnit unit : VectorUnitsHere()) {
    std::vector<char> out(sums.size() * static_cast<size_t>(row_count) *
                          SizeOf(dtype));
    SumGroups(dtype, groups, values.data(), row_count, out.data(), unit);
    EXPECT_EQ(CountWrong(sums, dtype, row_count, out), 0);
  }
}

TEST(rows_of_equal_ids_are_added_up) {
  for (DataType id_type : {DataType::kInt32, DataType::kInt64}) {
    for (const std::vector<int64_t>& ids : Lists(id_type)) {
      for (DataType dtype : {DataType::kFloat32, DataType::kInt8}) {
        for (int64_t row_count : {0, 1, 4, 16, 21}) {
          CheckGroups(id_type, ids, dtype, row_count);
        }
      }
    }
  }
}

TEST(rows_of_every_type_and_of_many_elements) {
  const std::vector<int64_t> some_twice = {4, 1, 4, 4, 0, 1};
  const std::vector<int64_t> each_once = {4, 1, 7, 0};
  for (DataType dtype : kReducedTypes) {
    for (int64_t row_count : {1, 3, 4, 8, 16, 1024, 2100}) {
      CheckGroups(DataType::kInt64, some_twice, dtype, row_count);
      CheckGroups(DataType::kInt64, each_once, dtype, row_count);
    }
  }
}

TEST(half_precision_is_rounded_once) {
  // Each 1 alone would be lost.
  const std::vector<int64_t> ids(9, 3);
  std::vector<char> values(9 * 2), out(2);
  PutValue(DataType::kFloat16, values.data(), 0, 2048);
  for (int i = 1; i < 9; ++i) PutValue(DataType::kFloat16, values.data(), i, 1);
  const RowGroups groups = GroupRows(DataType::kInt64, ids.data(), 9);
  SumGroups(DataType::kFloat16, groups, values.data(), 1, out.data());
  EXPECT_EQ(GetValue(DataType::kFloat16, out.data(), 0), 2056.0);
}

TEST(a_row_on_its_own_keeps_its_bits) {
  const std::vector<int64_t> ids = {4, 3, 3};
  for (DataType dtype : {DataType::kFloat32, DataType::kFloat16}) {
    std::vector<char> values(3 * SizeOf(dtype), '\0'), out(2 * SizeOf(dtype));
    PutValue(dtype, values.data(), 0, -0.0);
    SumGroups(dtype, GroupRows(DataType::kInt64, ids.data(), 3), values.data(),
              1, out.data());
    EXPECT_EQ(
        std::memcmp(out.data() + SizeOf(dtype), values.data(), SizeOf(dtype)),
        0);
  }
}

TEST(a_sorted_list_is_taken_as_it_is) {
  const std::vector<int64_t> ids = {2, 5, 1000000};
  EXPECT_TRUE(GroupRows(DataType::kInt64, ids.data(), 3).is_list());
  const std::vector<int64_t> twice = {2, 5, 5};
  EXPECT_FALSE(GroupRows(DataType::kInt64, twice.data(), 3).is_list());
}

TEST(ids_outside_the_table_are_found) {
  for (DataType id_type : {DataType::kInt32, DataType::kInt64}) {
    const auto find = [&](const std::vector<int64_t>& ids, int64_t rows) {
      return FindIdOutside(id_type, AsBytes(id_type, ids).data(),
                           static_cast<int64_t>(ids.size()), rows);
    };
    EXPECT_EQ(find({}, 0), -1);
    EXPECT_EQ(find({0, 9, 3}, 10), -1);
    EXPECT_EQ(find({0, 10, 3}, 10), 1);
    EXPECT_EQ(find({0, 9, -1}, 10), 2);
    EXPECT_EQ(find({0, 2000000000}, -1), -1);
    EXPECT_EQ(find({-2000000000, 3}, -1), 0);
    EXPECT_EQ(find({0}, 0), 0);
  }
  const int64_t huge = kHuge;
  EXPECT_EQ(FindIdOutside(DataType::kInt64, &huge, 1, -1), -1);
  EXPECT_EQ(FindIdOutside(DataType::kInt64, &huge, 1, kHuge), 0);
}

}  // namespace
}  // namespace hvd
