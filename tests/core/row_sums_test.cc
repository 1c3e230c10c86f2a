// SPDX-License-Identifier: Apache-2.0
// What the kernels that add up rows do, run on the host thread by thread: every
// sum has the host's bits, and nothing beside it is touched.
#include "transport/device/row_sums.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "cpu/row_groups.h"
#include "cpu/row_merge.h"
#include "harness.h"
#include "typed_values.h"

namespace hvd {
namespace {

constexpr int kThreads = 7;  // of a tile; does not divide anything
constexpr unsigned char kPoison = 0xa5;
constexpr int64_t kBefore = 16;  // elements

// Rows that are added up, and where.
template <typename From, typename To>
struct Rows {
  int64_t row_count = 1;
  std::vector<uint32_t> begins, sources;
  std::vector<From> values;  // with `shift` elements before the rows
  std::vector<To> sums;      // with poison before them, and one element behind
  // Without one, both are aligned for accesses of 16 bytes.
  int64_t shift = 0;

  int64_t count() const {
    return static_cast<int64_t>(begins.size() - 1) * row_count;
  }
  const From* from() const { return values.data() + shift; }
  To* to() { return sums.data() + kBefore + shift; }
};

template <typename From, typename To>
Rows<From, To> Draw(std::mt19937* random, int64_t rows, int64_t row_count,
                    int64_t shift) {
  Rows<From, To> drawn;
  drawn.row_count = row_count;
  drawn.shift = shift;
  const uint32_t listed = 40;
  for (uint32_t i = 0; i < shift + listed * row_count; ++i) {
    const auto number = static_cast<float>((*random)() % 4000) / 7.0f - 300.0f;
    drawn.values.push_back(ConvertFloat<From>(number));
  }
  drawn.begins.push_back(0);
  for (int64_t row = 0; row < rows; ++row) {
    // Some have no terms, some have more than are under way at once.
    for (uint32_t terms = (*random)() % 12; terms > 0; --terms) {
      drawn.sources.push_back((*random)() % listed);
    }
    drawn.begins.push_back(static_cast<uint32_t>(drawn.sources.size()));
  }
  drawn.sums.resize(static_cast<size_t>(kBefore + shift + drawn.count()) + 1);
  std::memset(drawn.sums.data(), kPoison, drawn.sums.size() * sizeof(To));
  return drawn;
}

template <typename From, typename To>
void Run(const std::vector<Rows<From, To>*>& all,
         const RowSumFactors& factors) {
  std::vector<RowSums> segments;
  for (Rows<From, To>* rows : all) {
    segments.push_back({rows->from(), rows->to(), rows->begins.data(),
                        rows->sources.data(), rows->count(), rows->row_count});
  }
  for (const RowSumTable& table :
       MakeTileTables<RowSumTable>(segments, 3 * kRowSumAlignment)) {
    // As a GPU would start its threads, but last ones first.
    for (uint32_t tile = table.tile_count(); tile-- > 0;) {
      for (int64_t thread = kThreads; thread-- > 0;) {
        SumTile<From, To>(table, tile, factors, TileThread{thread, kThreads});
      }
    }
  }
}

template <typename From, typename To>
To Expected(const Rows<From, To>& rows, int64_t at,
            const RowSumFactors& factors) {
  using C = typename ComputeType<From>::type;
  const auto row = static_cast<size_t>(at / rows.row_count);
  C sum = 0;
  for (uint32_t k = rows.begins[row]; k < rows.begins[row + 1]; ++k) {
    const C term = ConvertFloat<C>(
        rows.from()[rows.sources[k] * rows.row_count + at % rows.row_count]);
    sum = k == rows.begins[row] ? term : sum + term;
  }
  sum = sum / static_cast<C>(factors.divisor) * static_cast<C>(factors.scale);
  if (factors.is_rounded) sum = ConvertFloat<C>(ConvertFloat<From>(sum));
  return ConvertFloat<To>(
      static_cast<C>(sum * static_cast<C>(factors.late_scale)));
}

template <typename From, typename To>
void Check(Rows<From, To>* rows, const RowSumFactors& factors) {
  int64_t wrong = 0;
  for (int64_t at = 0; at < rows->count(); ++at) {
    const To expected = Expected(*rows, at, factors);
    wrong += std::memcmp(&expected, rows->to() + at, sizeof(To)) != 0;
  }
  EXPECT_EQ(wrong, 0);
  const std::vector<unsigned char> poison(sizeof(To), kPoison);
  for (const To* beside : {rows->to() - 1, rows->to() + rows->count()}) {
    EXPECT_EQ(std::memcmp(beside, poison.data(), sizeof(To)), 0);
  }
}

TEST(rows_of_any_length_and_place) {
  std::mt19937 random(1);
  for (const int64_t row_count : {1, 3, 4, 8, 16, 33, 200}) {
    for (const int64_t rows : {0, 1, 5, 23}) {
      for (const int64_t shift : {0, 1, 4}) {
        auto drawn = Draw<float, float>(&random, rows, row_count, shift);
        Run<float, float>({&drawn}, {});
        Check(&drawn, {});
      }
    }
  }
}

TEST(every_type_and_factor) {
  std::mt19937 random(3);
  VisitFloatingPairs([&](DataType, DataType, auto from, auto to) {
    using From = decltype(from);
    using To = decltype(to);
    for (const RowSumFactors factors :
         {RowSumFactors{}, RowSumFactors{3.0, 0.7, true, 1.0},
          RowSumFactors{1.0, 1.0, true, 0.3},
          RowSumFactors{1.0, 1.0, false, 0.3}}) {
      auto one = Draw<From, To>(&random, 9, 16, 0);
      auto other = Draw<From, To>(&random, 5, 16, 1);
      Run<From, To>({&one, &other}, factors);
      Check(&one, factors);
      Check(&other, factors);
    }
  });
}

// More tables than a launch has.
TEST(many_tables) {
  std::mt19937 random(4);
  std::vector<Rows<float, float>> drawn;
  for (int i = 0; i < 2 * RowSumTable::kMostSegments + 1; ++i) {
    drawn.push_back(Draw<float, float>(&random, i % 4, 1 + i % 9, 0));
  }
  std::vector<Rows<float, float>*> all;
  for (auto& rows : drawn) all.push_back(&rows);
  Run<float, float>(all, {});
  for (auto& rows : drawn) Check(&rows, {});
}

// A rank's rows of equal id, as the host adds them up.
TEST(the_bits_of_sum_groups) {
  std::mt19937 random(5);
  const int64_t row_count = 24;
  std::vector<int64_t> ids;
  std::vector<float> values;
  for (int i = 0; i < 300; ++i) {
    ids.push_back(random() % 50);
    for (int64_t c = 0; c < row_count; ++c) {
      values.push_back(static_cast<float>(random()) / 1e9f);
    }
  }
  const RowGroups groups = GroupRows(DataType::kInt64, ids.data(), 300);
  std::vector<float> expected(groups.ids.size() * row_count);
  SumGroups(DataType::kFloat32, groups, values.data(), row_count,
            expected.data());
  Rows<float, float> rows;
  rows.row_count = row_count;
  rows.values = values;
  rows.begins.push_back(0);
  for (uint32_t place = 0; place < groups.ids.size(); ++place) {
    for (uint32_t i = 0; i < 300; ++i) {
      if (groups.places[i] == place) rows.sources.push_back(i);
    }
    rows.begins.push_back(static_cast<uint32_t>(rows.sources.size()));
  }
  rows.sums.resize(kBefore + expected.size());
  Run<float, float>({&rows}, {});
  EXPECT_EQ(
      std::memcmp(rows.to(), expected.data(), expected.size() * sizeof(float)),
      0);
}

}  // namespace
}  // namespace hvd
