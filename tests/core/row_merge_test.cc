// SPDX-License-Identifier: Apache-2.0
// The rows of several ranks are merged, against sums of one after another.
#include "cpu/row_merge.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "cpu/id_union.h"
#include "harness.h"
#include "row_sums.h"
#include "typed_values.h"
#include "vector_units.h"

namespace hvd {
namespace {

// Some rows of each of `ranks` ranks. The last has none.
struct World {
  std::vector<std::vector<int64_t>> ids;
  std::vector<std::vector<char>> values;
  std::vector<int64_t> united;
  std::vector<uint32_t> places;
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
    size_t total = 0;
    for (const std::vector<int64_t>& list : ids) total += list.size();
    places.resize(total);
    united.resize(total);
    const std::vector<Span<int64_t>> lists(ids.begin(), ids.end());
    united.resize(
        static_cast<size_t>(UniteIds(lists, places.data(), united.data())));
    const uint32_t* next = places.data();
    for (size_t rank = 0; rank < ids.size(); ++rank) {
      parts.push_back({next, lists[rank].size(), values[rank].data()});
      next += lists[rank].size();
    }
  }
};

TEST(merged_rows_are_sums_and_averages) {
  for (DataType dtype : kReducedTypes) {
    for (int64_t row_count : {0, 1, 4, 5, 8, 16, 37, 1500}) {
      const int ranks = 5;
      const World world(dtype, ranks, row_count);
      Sums sums;
      for (size_t rank = 0; rank < world.ids.size(); ++rank) {
        for (size_t i = 0; i < world.ids[rank].size(); ++i) {
          AddTo(&sums, world.ids[rank][i], row_count, dtype,
                world.values[rank].data(), static_cast<int64_t>(i));
        }
      }
      const RowRange all = {0, static_cast<int64_t>(world.united.size())};
      std::vector<char> out(world.united.size() *
                            static_cast<size_t>(row_count) * SizeOf(dtype));
      RowReduction reduction;
      reduction.dtype = dtype;
      MergeRows(reduction, world.parts, all, row_count, out.data());
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
      MergeRows(reduction, world.parts, all, row_count, out.data());
      EXPECT_EQ(CountWrong(sums, dtype, row_count, out), 0);
    }
  }
}

TEST(a_row_of_one_rank_keeps_its_bits) {
  for (DataType dtype : {DataType::kFloat32, DataType::kFloat16}) {
    std::vector<char> values(2 * SizeOf(dtype)), out(values.size());
    PutValue(dtype, values.data(), 0, -0.0);
    PutValue(dtype, values.data(), 1, 0.0);
    const uint32_t place = 0;
    RowReduction reduction;
    reduction.dtype = dtype;
    MergeRows(reduction, {{}, {&place, 1, values.data()}}, {0, 1}, 2,
              out.data());
    EXPECT_TRUE(out == values);
  }
}

// The bits of a row depend neither on the vector unit nor on what else is
// merged with it.
TEST(merged_rows_have_the_same_bits_in_any_part) {
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
    const size_t count = world.united.size();
    const auto row_bytes = static_cast<size_t>(row_count) * SizeOf(dtype);
    RowReduction reduction;
    reduction.dtype = dtype;
    reduction.averages = true;
    reduction.ranks = 3;
    std::vector<char> first(count * row_bytes), out(first.size());
    MergeRows(reduction, world.parts, {0, static_cast<int64_t>(count)},
              row_count, first.data(), VectorUnit::kBaseline);
    for (VectorUnit unit : VectorUnitsHere()) {
      for (size_t i = 0; i < count; ++i) {
        std::vector<RankRows> parts;
        for (const RankRows& part : world.parts) {
          const uint32_t* const end = part.places + part.count;
          const uint32_t* const at = std::lower_bound(part.places, end, i);
          const bool has = at < end && *at == i;
          parts.push_back(
              {at, has ? 1 : 0,
               static_cast<const char*>(part.values) +
                   static_cast<size_t>(at - part.places) * row_bytes});
        }
        const auto row = static_cast<int64_t>(i);
        MergeRows(reduction, parts, {row, row + 1}, row_count,
                  out.data() + i * row_bytes, unit);
      }
      EXPECT_EQ(std::memcmp(out.data(), first.data(), out.size()), 0);
    }
  }
}

}  // namespace
}  // namespace hvd
