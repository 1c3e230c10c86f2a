// SPDX-License-Identifier: Apache-2.0
// Sparse allreduces without a wire: how ids are written, which rows a piece
// has, and which way values take.
#include "transport/collectives/sparse_plan.h"

#include <cstring>
#include <limits>
#include <vector>

#include "harness.h"
#include "transport/collectives/batch_check.h"
#include "transport/collectives/id_code.h"

namespace hvd {
namespace {

using Ids = std::vector<int64_t>;

// As they are written and read. Nothing: they are refused.
Ids Passed(const Ids& ids, int64_t table_rows, int64_t bytes,
           bool is_sound = true) {
  const IdCode code(static_cast<int64_t>(ids.size()), table_rows,
                    DataType::kInt64);
  EXPECT_EQ(code.bytes(), bytes);
  std::vector<std::byte> wire(static_cast<size_t>(bytes) + 1, std::byte{0x5a});
  code.Encode(ids.data(), wire.data());
  EXPECT_TRUE(wire.back() == std::byte{0x5a});
  Ids read(ids.size() + 1, 7);  // what is behind them stays
  EXPECT_EQ(code.Decode(wire.data(), read.data()), is_sound);
  EXPECT_EQ(read.back(), 7);
  read.pop_back();
  return read;
}

TEST(ids_take_the_fewest_bytes) {
  const int64_t huge = std::numeric_limits<int64_t>::max() - 1;
  EXPECT_TRUE(Passed({}, 0, 0) == Ids());
  EXPECT_TRUE(Passed({}, 100, 0) == Ids());
  EXPECT_TRUE(Passed({0, 1, 2}, 3, 0) == Ids({0, 1, 2}));
  EXPECT_TRUE(Passed({0, 2, 8}, 9, 2) == Ids({0, 2, 8}));
  EXPECT_TRUE(Passed({0, 62, 63, 64, 127, 128, 199}, 200, 25) ==
              Ids({0, 62, 63, 64, 127, 128, 199}));
  EXPECT_TRUE(Passed({5, 99999}, 100000, 8) == Ids({5, 99999}));
  EXPECT_TRUE(Passed({5, (int64_t{1} << 31) - 1}, int64_t{1} << 31, 8) ==
              Ids({5, (int64_t{1} << 31) - 1}));
  EXPECT_TRUE(Passed({5, huge + 1}, -1, 16) == Ids({5, huge + 1}));
  EXPECT_TRUE(Passed({5, huge}, huge + 1, 16) == Ids({5, huge}));
  EXPECT_TRUE(Passed({3, int64_t{1} << 40}, (int64_t{1} << 40) + 1, 16) ==
              Ids({3, int64_t{1} << 40}));
}

TEST(ids_of_32_bits_are_written_as_they_are) {
  const std::vector<int32_t> ids = {0, 4, std::numeric_limits<int32_t>::max()};
  const IdCode code(3, -1, DataType::kInt32);
  EXPECT_EQ(code.bytes(), 12);
  std::vector<std::byte> wire(12);
  code.Encode(ids.data(), wire.data());
  Ids read(3);
  EXPECT_TRUE(code.Decode(wire.data(), read.data()));
  EXPECT_TRUE(read == Ids(ids.begin(), ids.end()));
}

TEST(ids_that_make_no_sense_are_refused) {
  for (int64_t table_rows : {int64_t{-1}, int64_t{1000}, int64_t{1} << 40}) {
    const int64_t width = table_rows == 1000 ? 4 : 8;
    Passed({4, 4}, table_rows, 2 * width, false);
    Passed({4, 3}, table_rows, 2 * width, false);
    Passed({-1, 3}, table_rows, 2 * width, false);
    if (table_rows < 0) continue;
    Passed({3, table_rows}, table_rows, 2 * width, false);
  }
  // Bits of rows that are not there, or too few, or too many.
  Passed({0, 2, 9}, 9, 2, false);
  Passed({0, 2, 2}, 9, 2, false);
  const IdCode code(3, 9, DataType::kInt64);
  for (const char* bits : {"\x07\x01", "\x03\x02", "\x00\x00"}) {
    std::vector<std::byte> wire(2);
    std::memcpy(wire.data(), bits, 2);
    Ids read(3);
    EXPECT_FALSE(code.Decode(wire.data(), read.data()));
  }
  // More rows than the table has are no list of it.
  Passed({0, 1, 2, 3}, 3, 1, false);
}

SparsePlan PlanOf(const std::vector<std::vector<Ids>>& ids, Ids row_counts) {
  int64_t rows = 0;
  for (const std::vector<Ids>& lists : ids) {
    for (const Ids& list : lists) rows += static_cast<int64_t>(list.size());
  }
  SparsePlan plan(static_cast<int>(ids[0].size()), std::move(row_counts), rows);
  for (const std::vector<Ids>& lists : ids) {
    plan.Unite({lists.begin(), lists.end()});
  }
  return plan;
}

TEST(values_take_the_way_that_sends_less) {
  const auto prefers = [](std::vector<Ids> ranks) {
    return PlanOf({std::move(ranks)}, {1}).PrefersOwners(0);
  };
  const Ids a = {1, 2, 3, 4}, b = {5, 6, 7, 8}, c = {9, 10, 11, 12};
  EXPECT_FALSE(prefers({a}));
  EXPECT_FALSE(prefers({a, a}));  // the same either way: one round is faster
  EXPECT_FALSE(prefers({a, b}));
  EXPECT_TRUE(prefers({a, a, a}));
  EXPECT_FALSE(prefers({a, b, c}));
  EXPECT_FALSE(prefers({a, a, b}));  // 2 * 12 and 3 * 8
  EXPECT_TRUE(prefers({a, a, b, b}));
  EXPECT_FALSE(prefers({{}, {}, {}}));
}

// Every element of the result is in one piece, and every element of a rank.
// `pieces` is 0 where they are cut by rank.
void CheckPieces(const SparsePlan& plan, int64_t most, int64_t pieces) {
  std::vector<size_t> segments;
  int64_t total = 0;
  std::vector<int64_t> of_ranks(static_cast<size_t>(plan.ranks()), 0);
  for (size_t s = 0; s < plan.segment_count(); ++s) {
    segments.push_back(s);
    total += plan.united(s).size() * plan.row_count(s);
    for (int rank = 0; rank < plan.ranks(); ++rank) {
      of_ranks[rank] += plan.places(s, rank).size() * plan.row_count(s);
    }
  }
  int64_t last_first = -1;
  const bool by_rank = pieces == 0;
  for (const SparsePiece& piece : by_rank ? plan.CutByRank(segments, most)
                                          : plan.Cut(segments, most, pieces)) {
    const int64_t count = SparsePlan::CountOf(piece);
    EXPECT_TRUE(0 < count && (by_rank || count <= most));
    total -= count;
    EXPECT_EQ(plan.MapOf(piece).total(), count);
    for (int rank = 0; rank < plan.ranks(); ++rank) {
      of_ranks[rank] -= plan.CountOf(piece, rank);
      EXPECT_TRUE(plan.CountOf(piece, rank) <= most);
      EXPECT_EQ(plan.MapOf(piece, rank).total(), plan.CountOf(piece, rank));
    }
    for (const SparseRun& run : piece) {
      // Whole rows, or a part of one.
      EXPECT_TRUE(run.columns == plan.row_count(run.segment) ||
                  run.rows.size() == 1);
      const int64_t first = static_cast<int64_t>(run.segment) * 1000000 +
                            run.rows.begin * 1000 + run.column;
      EXPECT_TRUE(last_first < first);
      last_first = first;
    }
  }
  EXPECT_EQ(total, 0);
  for (int64_t rest : of_ranks) EXPECT_EQ(rest, 0);
}

TEST(pieces_cover_all_rows_once) {
  const SparsePlan plan = PlanOf({{{1, 5, 9}, {2, 5}, {}},
                                  {{0, 1, 2, 3, 4, 5, 6}, {6}, {3, 4}},
                                  {{}, {}, {}},
                                  {{8}, {8}, {8}},
                                  {{1, 2}, {1, 2}, {1}}},
                                 {4, 3, 7, 0, 50});
  for (int64_t most : {1, 3, 16, 64, 1000}) {
    for (int64_t pieces : {0, 1, 3, 8}) CheckPieces(plan, most, pieces);
  }
  EXPECT_TRUE(PlanOf({{{}, {}}}, {4}).Cut({0}, 100, 2).empty());
}

TEST(more_rows_than_have_numbers_are_refused) {
  const auto check = [](int64_t table_rows, std::vector<int64_t> rows) {
    Batch batch;
    batch.verb = Verb::kSparseAllreduce;
    Segment& segment = batch.segments.emplace_back();
    segment.table_rows = table_rows;
    segment.row_count = 1;
    segment.rows = segment.count = rows[0];
    batch.rows = {std::move(rows)};
    return CheckBatch(batch, 0, 2).code();
  };
  const int64_t half = int64_t{1} << 31;
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_TRUE(check(-1, {half, half - 1}) == StatusCode::kOk);
  EXPECT_TRUE(check(-1, {half, half}) == StatusCode::kResourceExhausted);
  EXPECT_TRUE(check(-1, {most, most}) == StatusCode::kResourceExhausted);
  EXPECT_TRUE(check(2 * half, {half, half}) == StatusCode::kResourceExhausted);
  // The result has no more rows than the table.
  EXPECT_TRUE(check(half, {half, half}) == StatusCode::kOk);
}

// As many blocks as where each rank's rows are gathered for themselves.
TEST(pieces_by_rank_are_few_where_rows_differ) {
  constexpr int kRanks = 64;
  constexpr int64_t kRows = 100, kRowCount = 16, kMost = 400;
  std::vector<Ids> apart(kRanks), same(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int64_t row = 0; row < kRows; ++row) {
      apart[rank].push_back(row * kRanks + rank);
      same[rank].push_back(row);
    }
  }
  for (const auto& ids : {apart, same}) {
    const SparsePlan plan = PlanOf({ids}, {kRowCount});
    CheckPieces(plan, kMost, 0);
    EXPECT_EQ(plan.CutByRank({0}, kMost).size(), 4u);
  }
}

TEST(pieces_are_as_many_as_owners) {
  Ids all;
  for (int64_t id = 0; id < 120; ++id) all.push_back(id);
  const SparsePlan plan = PlanOf({{all, all, all, all}}, {8});
  const std::vector<SparsePiece> pieces = plan.Cut({0}, 1000, 4);
  ASSERT_EQ(pieces.size(), 4u);
  for (const SparsePiece& piece : pieces) {
    EXPECT_EQ(SparsePlan::CountOf(piece), 240);
  }
}

}  // namespace
}  // namespace hvd
