// SPDX-License-Identifier: Apache-2.0
// Rows with ids: sums of equal ids and merged lists, against maps of ids.
#include "cpu/sparse_rows.h"

#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "harness.h"
#include "typed_values.h"

namespace hvd {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

std::vector<VectorUnit> Units() {
  std::vector<VectorUnit> units = {VectorUnit::kBaseline};
  if (BestVectorUnit() != VectorUnit::kBaseline) {
    units.push_back(VectorUnit::kAvx2);
    units.push_back(BestVectorUnit());
  }
  return units;
}

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

// What a row of each id adds up to, in float64, which is exact here.
using Sums = std::map<int64_t, std::vector<double>>;

void AddTo(Sums* sums, int64_t id, int64_t row_count, DataType dtype,
           const char* values, int64_t row) {
  std::vector<double>& sum = (*sums)[id];
  sum.resize(static_cast<size_t>(row_count), 0.0);
  for (int64_t c = 0; c < row_count; ++c) {
    sum[c] += GetValue(dtype, values, row * row_count + c);
  }
}

int64_t CountWrong(const Sums& sums, DataType dtype, int64_t row_count,
                   const std::vector<char>& out) {
  int64_t wrong = 0, at = 0;
  for (const auto& [id, sum] : sums) {
    for (int64_t c = 0; c < row_count; ++c) {
      wrong += GetValue(dtype, out.data(), at++) != Wrapped(dtype, sum[c]);
    }
  }
  return wrong;
}

std::vector<char> Samples(DataType dtype, int rank, int64_t count) {
  std::vector<char> values(static_cast<size_t>(count) * SizeOf(dtype));
  for (int64_t i = 0; i < count; ++i) {
    PutValue(dtype, values.data(), i,
             SampleValue(dtype, ReduceOp::kSum, rank, i));
  }
  return values;
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
  for (VectorUnit unit : Units()) {
    std::vector<char> out(sums.size() * static_cast<size_t>(row_count) *
                          SizeOf(dtype));
    SumGroups(dtype, groups, values.data(), row_count, out.data(), unit);
    EXPECT_EQ(CountWrong(sums, dtype, row_count, out), 0);
  }
}

TEST(RowsOfEqualIdsAreAddedUp) {
  for (DataType id_type : {DataType::kInt32, DataType::kInt64}) {
    for (const std::vector<int64_t>& ids : Lists(id_type)) {
      for (DataType dtype : {DataType::kFloat32, DataType::kInt8}) {
        for (int64_t row_count : {0, 1, 16, 21}) {
          CheckGroups(id_type, ids, dtype, row_count);
        }
      }
    }
  }
}

TEST(RowsOfEveryTypeAndOfManyElements) {
  const std::vector<int64_t> ids = {4, 1, 4, 4, 0, 1};
  for (DataType dtype : kReducedTypes) {
    for (int64_t row_count : {1, 3, 1024, 2100}) {
      CheckGroups(DataType::kInt64, ids, dtype, row_count);
    }
  }
}

TEST(HalfPrecisionIsRoundedOnce) {
  // Each 1 alone would be lost.
  const std::vector<int64_t> ids(9, 3);
  std::vector<char> values(9 * 2), out(2);
  PutValue(DataType::kFloat16, values.data(), 0, 2048);
  for (int i = 1; i < 9; ++i) PutValue(DataType::kFloat16, values.data(), i, 1);
  const RowGroups groups = GroupRows(DataType::kInt64, ids.data(), 9);
  SumGroups(DataType::kFloat16, groups, values.data(), 1, out.data());
  EXPECT_EQ(GetValue(DataType::kFloat16, out.data(), 0), 2056.0);
}

TEST(ASortedListIsTakenAsItIs) {
  const std::vector<int64_t> ids = {2, 5, 1000000};
  EXPECT_TRUE(GroupRows(DataType::kInt64, ids.data(), 3).is_list());
  const std::vector<int64_t> twice = {2, 5, 5};
  EXPECT_FALSE(GroupRows(DataType::kInt64, twice.data(), 3).is_list());
}

TEST(IdsOutsideTheTableAreFound) {
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

TEST(UnionsOfAnyNumberOfLists) {
  std::mt19937_64 random(3);
  for (size_t lists = 0; lists < 9; ++lists) {
    for (int64_t spread : {1, 40, 100000}) {
      std::vector<std::vector<int64_t>> parts;
      std::map<int64_t, int> expected;
      for (size_t p = 0; p < lists; ++p) {
        std::map<int64_t, int> own;
        for (size_t i = 0; i < random() % 300; ++i) {
          own[static_cast<int64_t>(random() % spread) - 2] = 1;
        }
        std::vector<int64_t>& part = parts.emplace_back();
        for (const auto& [id, one] : own) part.push_back(id);
        expected.insert(own.begin(), own.end());
      }
      const std::vector<int64_t> ids = UnionOfIds(parts);
      ASSERT_EQ(ids.size(), expected.size());
      size_t at = 0;
      for (const auto& [id, one] : expected) EXPECT_EQ(ids[at++], id);
    }
  }
}

// Some rows of each of `ranks` ranks. The last has none.
struct World {
  std::vector<std::vector<int64_t>> ids;
  std::vector<std::vector<char>> values;
  std::vector<RankRows> parts;

  World(DataType dtype, int ranks, int64_t row_count) {
    std::mt19937_64 random(11);
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<int64_t>& list = ids.emplace_back();
      for (int64_t id = 0; id < 60; ++id) {
        if (rank + 1 < ranks && random() % 2 == 0) list.push_back(id * 3);
      }
      values.push_back(
          Samples(dtype, rank, static_cast<int64_t>(list.size()) * row_count));
    }
    for (size_t rank = 0; rank < ids.size(); ++rank) {
      parts.push_back({ids[rank].data(), static_cast<int64_t>(ids[rank].size()),
                       values[rank].data()});
    }
  }
};

TEST(MergedRowsAreSumsAndAverages) {
  for (DataType dtype : kReducedTypes) {
    for (int64_t row_count : {0, 1, 16, 37, 1500}) {
      const int ranks = 5;
      const World world(dtype, ranks, row_count);
      Sums sums;
      for (const RankRows& part : world.parts) {
        for (int64_t i = 0; i < part.count; ++i) {
          AddTo(&sums, part.ids[i], row_count, dtype,
                static_cast<const char*>(part.values), i);
        }
      }
      const std::vector<int64_t> all = UnionOfIds(world.ids);
      const auto count = static_cast<int64_t>(all.size());
      std::vector<char> out(all.size() * static_cast<size_t>(row_count) *
                            SizeOf(dtype));
      RowReduction reduction;
      reduction.dtype = dtype;
      MergeRows(reduction, world.parts, all.data(), count, row_count,
                out.data());
      EXPECT_EQ(CountWrong(sums, dtype, row_count, out), 0);

      reduction.averages = true;
      reduction.ranks = 4;
      reduction.postscale = 2.0;
      for (auto& [id, sum] : sums) {
        for (double& value : sum) {
          value /= 4;
          if (!IsFloating(dtype)) value = std::trunc(value);
          value *= 2;
        }
      }
      MergeRows(reduction, world.parts, all.data(), count, row_count,
                out.data());
      EXPECT_EQ(CountWrong(sums, dtype, row_count, out), 0);
    }
  }
}

// The bits of a row depend neither on the vector unit nor on what else is
// merged with it.
TEST(MergedRowsHaveTheSameBitsInAnyPart) {
  std::mt19937_64 random(2);
  for (DataType dtype : {DataType::kFloat32, DataType::kBfloat16}) {
    const int64_t row_count = 19;
    World world(dtype, 4, row_count);
    for (std::vector<char>& values : world.values) {
      const auto elements = static_cast<int64_t>(values.size() / SizeOf(dtype));
      for (int64_t i = 0; i < elements; ++i) {
        PutValue(dtype, values.data(), i,
                 static_cast<double>(random() % 1000003) / 7.0);
      }
    }
    const std::vector<int64_t> all = UnionOfIds(world.ids);
    const auto row_bytes = static_cast<size_t>(row_count) * SizeOf(dtype);
    RowReduction reduction;
    reduction.dtype = dtype;
    reduction.averages = true;
    reduction.ranks = 3;
    std::vector<char> first(all.size() * row_bytes), out(first.size());
    MergeRows(reduction, world.parts, all.data(),
              static_cast<int64_t>(all.size()), row_count, first.data(),
              VectorUnit::kBaseline);
    for (VectorUnit unit : Units()) {
      for (size_t i = 0; i < all.size(); ++i) {
        std::vector<RankRows> parts;
        for (const RankRows& part : world.parts) {
          const int64_t* const at =
              std::lower_bound(part.ids, part.ids + part.count, all[i]);
          const bool has = at < part.ids + part.count && *at == all[i];
          parts.push_back({at, has ? 1 : 0,
                           static_cast<const char*>(part.values) +
                               static_cast<size_t>(at - part.ids) * row_bytes});
        }
        MergeRows(reduction, parts, &all[i], 1, row_count,
                  out.data() + i * row_bytes, unit);
      }
      EXPECT_EQ(std::memcmp(out.data(), first.data(), out.size()), 0);
    }
  }
}

}  // namespace
}  // namespace hvd
