// SPDX-License-Identifier: Apache-2.0
// StoreChoice on machines that are models: how fast they pack either way.
#include "cpu/store_choice.h"

#include "harness.h"

namespace hvd {
namespace {

constexpr size_t kBlock = 128 << 10;

// GB/s of a Zen 4's two cores that share a cache, and that do not.
struct Machine {
  double cached_gb_s;
  double non_temporal_gb_s;
};
constexpr Machine kTogether{15, 11.5}, kApart{2.5, 18};

// Packs a block as the choice says. True if past the cache.
bool PackBlock(StoreChoice* choice, const Machine& machine,
               size_t bytes = kBlock, double seconds_more = 0) {
  const bool non_temporal = choice->Next(bytes);
  const double gb_s =
      non_temporal ? machine.non_temporal_gb_s : machine.cached_gb_s;
  const double seconds = static_cast<double>(bytes) / gb_s * 1e-9;
  choice->Took(bytes, non_temporal, seconds + seconds_more);
  return non_temporal;
}

// How many of so many blocks were written past the cache.
int PackBlocks(StoreChoice* choice, const Machine& machine, int count,
               size_t bytes = kBlock) {
  int non_temporal = 0;
  for (int i = 0; i < count; ++i) {
    non_temporal += PackBlock(choice, machine, bytes);
  }
  return non_temporal;
}

TEST(blocks_stay_in_a_cache_that_is_shared) {
  StoreChoice choice;
  const int non_temporal = PackBlocks(&choice, kTogether, 20000);
  EXPECT_TRUE(non_temporal > 0);    // it tries
  EXPECT_TRUE(non_temporal < 200);  // but not often
  EXPECT_FALSE(choice.NonTemporal(kBlock));
}

TEST(blocks_are_non_temporal_between_cores_that_share_no_cache) {
  StoreChoice choice;
  const int non_temporal = PackBlocks(&choice, kApart, 20000);
  EXPECT_TRUE(non_temporal > 19500);
  EXPECT_TRUE(non_temporal < 20000);
  EXPECT_TRUE(choice.NonTemporal(kBlock));
}

TEST(the_first_trial_comes_within_16_mb) {
  StoreChoice choice;
  PackBlocks(&choice, kApart, (16 << 20) / kBlock);
  EXPECT_TRUE(choice.NonTemporal(kBlock));
}

TEST(a_move_apart_is_seen_with_a_few_blocks) {
  StoreChoice choice;
  PackBlocks(&choice, kTogether, 3000);
  PackBlocks(&choice, kApart, 8);
  EXPECT_TRUE(choice.NonTemporal(kBlock));
}

TEST(a_move_together_is_seen_within_256_mb) {
  StoreChoice choice;
  PackBlocks(&choice, kApart, 3000);
  PackBlocks(&choice, kTogether, (256 << 20) / kBlock);
  EXPECT_FALSE(choice.NonTemporal(kBlock));
}

TEST(a_lost_core_is_no_slow_cache) {
  constexpr double kSlice = 4e-3;
  for (const Machine& machine : {kTogether, kApart}) {
    StoreChoice choice;
    PackBlocks(&choice, machine, 3000);
    const bool non_temporal = choice.NonTemporal(kBlock);
    int changes = 0;
    // Every third block, be it one of a trial or not.
    for (int i = 0; i < 20000; ++i) {
      PackBlock(&choice, machine, kBlock, i % 3 == 0 ? kSlice : 0);
      changes += choice.NonTemporal(kBlock) != non_temporal;
    }
    EXPECT_EQ(changes, 0);
  }
}

TEST(a_machine_in_between_keeps_to_one_way) {
  // A ratio between where non-temporal stores begin and where it ends.
  constexpr Machine kBetween{5, 10};
  StoreChoice cached;
  PackBlocks(&cached, kTogether, 3000);
  PackBlocks(&cached, kBetween, 9000);
  EXPECT_FALSE(cached.NonTemporal(kBlock));
  StoreChoice non_temporal;
  PackBlocks(&non_temporal, kApart, 3000);
  PackBlocks(&non_temporal, kBetween, 9000);
  EXPECT_TRUE(non_temporal.NonTemporal(kBlock));
}

TEST(small_blocks_are_never_non_temporal_and_say_nothing) {
  StoreChoice choice;
  EXPECT_EQ(PackBlocks(&choice, kApart, 50000, 4096), 0);
  PackBlocks(&choice, kApart, 3000);
  EXPECT_TRUE(choice.NonTemporal(kBlock));
  EXPECT_FALSE(choice.NonTemporal(4096));
  EXPECT_EQ(PackBlocks(&choice, kTogether, 50000, 4096), 0);
  EXPECT_TRUE(choice.NonTemporal(kBlock));
}

TEST(a_first_block_that_is_longer_than_all_trials_decides_nothing) {
  StoreChoice choice;
  PackBlocks(&choice, kTogether, 3, size_t{1} << 30);
  EXPECT_FALSE(choice.NonTemporal(kBlock));
}

TEST(a_policy_is_kept) {
  StoreChoice never(StoreChoice::kNever), always(StoreChoice::kAlways);
  EXPECT_EQ(PackBlocks(&never, kApart, 5000), 0);
  EXPECT_EQ(PackBlocks(&always, kTogether, 5000), 5000);
  EXPECT_EQ(PackBlocks(&always, kTogether, 5000, 16), 5000);
}

}  // namespace
}  // namespace hvd
