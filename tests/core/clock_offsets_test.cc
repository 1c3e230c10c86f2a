// SPDX-License-Identifier: Apache-2.0
// ClockOffsets: what is known of another host's clock.
#include "core/clock_offsets.h"

#include "harness.h"

namespace hvd {
namespace {

TEST(clock_offsets_the_shortest_answer_wins) {
  ClockOffsets clocks(2);
  // The other clock reads 1000 more. The first answers have waited.
  for (int64_t asked : {10, 20, 30, 40}) {
    EXPECT_FALSE(clocks.Answered(1, asked, asked + 1900, asked + 2000));
    EXPECT_FALSE(clocks.is_settled(1));
  }
  ASSERT_TRUE(clocks.Best(1).has_value());
  EXPECT_EQ(clocks.Best(1)->error_ns, 1000);
  // Answers come at once, late, early.
  auto first = clocks.Answered(1, 2100, 3150, 2200);
  ASSERT_TRUE(first.has_value());
  EXPECT_TRUE(clocks.is_settled(1));
  EXPECT_EQ(first->offset_ns, 1000);
  EXPECT_EQ(first->error_ns, 50);
  EXPECT_FALSE(clocks.Answered(1, 2300, 3390, 2500).has_value());
  const auto better = clocks.Answered(1, 2600, 3605, 2620);
  ASSERT_TRUE(better.has_value());
  EXPECT_EQ(better->offset_ns, 995);
  EXPECT_EQ(better->error_ns, 10);
  // After a second it may be wrong by 20 us more.
  const int64_t later = 1'000'000'000;
  EXPECT_TRUE(clocks.Answered(1, later, later + 6000, later + 12000));
  EXPECT_FALSE(clocks.Answered(1, later, later, later + 50000));
}

// The fifth answer settles it, though an earlier one was better.
TEST(clock_offsets_that_settle_are_the_best_so_far) {
  ClockOffsets clocks(1);
  for (int64_t way : {300, 20, 200, 100}) {
    EXPECT_FALSE(clocks.Answered(0, 1000, 1000 + way / 2, 1000 + way));
  }
  const auto settled = clocks.Answered(0, 2000, 2025, 2050);
  ASSERT_TRUE(settled.has_value());
  EXPECT_EQ(settled->error_ns, 10);
}

TEST(clock_offsets_refuse_answers_that_cannot_be) {
  ClockOffsets clocks(1);
  (void)clocks.Answered(0, 10, 5, 9);
  (void)clocks.Answered(0, 10, -5, 20);
  (void)clocks.Answered(0, -10, 5, 20);
  (void)clocks.Answered(0, 0, 5, int64_t{1} << 40);
  (void)clocks.Answered(0, 0, 5, int64_t{1} << 40);
  EXPECT_FALSE(clocks.Best(0).has_value());
  EXPECT_FALSE(clocks.is_settled(0));
}

}  // namespace
}  // namespace hvd
