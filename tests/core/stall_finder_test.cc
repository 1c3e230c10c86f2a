// SPDX-License-Identifier: Apache-2.0
// StallFinder: whom it names, when it repeats itself, and when it gives up.
#include "core/control/stall_finder.h"

#include <string>

#include "harness.h"

namespace hvd {
namespace {

// Ranks 10 and 11 of the job.
struct Set {
  explicit Set(const Options& options) : stalls({10, 11}, options, &matcher) {}

  void Submit(int rank, const std::string& name, int at_s) {
    const Matcher::Clock::time_point now{std::chrono::seconds(at_s)};
    matcher.Heard(now);
    Matcher::Pending* const pending = matcher.FindOrAdd({name, 0}, now);
    Matcher::Waiting waiting{nullptr, 0, nullptr};
    matcher.SetSignature(&waiting, pending, Signature(), nullptr);
    matcher.Add(rank, pending, std::move(waiting));
  }
  StallFinder::Found Find(int at_s) {
    return stalls.Find(
        StallFinder::Clock::time_point{std::chrono::seconds(at_s)});
  }

  Matcher matcher{2};
  StallFinder stalls;
};

Options Limits(double warning_s, double shutdown_s, double mismatch_s) {
  Options options = Options::Defaults();
  options.stall_warning_s = warning_s;
  options.stall_shutdown_s = shutdown_s;
  options.mismatch_warning_s = mismatch_s;
  return options;
}

TEST(stall_finder_names_who_is_missing_with_growing_gaps) {
  Set set(Limits(60, 0, 0));
  set.Submit(0, "x", 0);
  set.Submit(0, "y", 29);
  EXPECT_TRUE(set.Find(59).watched.stalls.empty());
  const auto stalls = set.Find(60).watched.stalls;
  ASSERT_EQ(stalls.size(), 1u);
  EXPECT_TRUE((stalls[0].missing == std::vector<int>{11}));
  // "y" has waited for half as long.
  EXPECT_EQ(stalls[0].names.size(), 2u);
  EXPECT_NEAR(stalls[0].waited_s, 60, 1e-9);
  EXPECT_TRUE(set.Find(119).watched.stalls.empty());
  EXPECT_EQ(set.Find(120).watched.stalls.size(), 1u);
  EXPECT_TRUE(set.Find(239).watched.stalls.empty());
  EXPECT_EQ(set.Find(240).watched.stalls.size(), 1u);
}

TEST(stall_finder_begins_anew_with_a_key_that_waits_anew) {
  Set set(Limits(60, 0, 0));
  set.Submit(0, "x", 0);
  EXPECT_EQ(set.Find(60).watched.stalls.size(), 1u);
  set.Submit(1, "x", 70);
  set.matcher.ClearFronts(set.matcher.Find({"x", 0}));
  set.matcher.EraseIfEmpty({"x", 0});
  EXPECT_TRUE(set.Find(80).watched.stalls.empty());
  set.Submit(0, "x", 100);
  EXPECT_TRUE(set.Find(159).watched.stalls.empty());
  EXPECT_EQ(set.Find(160).watched.stalls.size(), 1u);
  // It does so between two looks as well.
  set.Submit(1, "x", 170);
  set.matcher.ClearFronts(set.matcher.Find({"x", 0}));
  set.Submit(0, "x", 170);
  EXPECT_EQ(set.Find(230).watched.stalls.size(), 1u);
}

TEST(stall_finder_gives_up_the_rank_that_keeps_others_waiting_longest) {
  Set set(Limits(0, 30, 0));
  set.Submit(0, "x", 0);
  EXPECT_FALSE(set.Find(29).watched.lost.has_value());
  const auto found = set.Find(30);
  ASSERT_TRUE(found.watched.lost.has_value());
  EXPECT_TRUE((found.watched.lost->missing == std::vector<int>{11}));
  EXPECT_TRUE(found.watched.stalls.empty());
  EXPECT_FALSE(found.mismatch.has_value());
  set.Submit(1, "y", 5);
  const auto longest = set.Find(36).watched.lost;
  ASSERT_TRUE(longest.has_value());
  EXPECT_TRUE((longest->missing == std::vector<int>{11}));
}

TEST(stall_finder_tells_a_mismatch_once_and_blames_no_rank) {
  Set set(Limits(0, 30, 10));
  set.Submit(0, "x", 0);
  EXPECT_TRUE(set.Find(20).watched.warnings.empty());  // rank 11 may be slow
  set.Submit(1, "y", 20);
  EXPECT_TRUE(set.Find(29).watched.warnings.empty());
  const auto found = set.Find(30);
  ASSERT_EQ(found.watched.warnings.size(), 1u);
  EXPECT_NE(found.watched.warnings[0].find("'x'"), std::string::npos);
  EXPECT_FALSE(found.watched.lost.has_value());
  ASSERT_TRUE(found.mismatch.has_value());
  EXPECT_EQ(*found.mismatch, found.watched.warnings[0]);
  EXPECT_TRUE(set.Find(31).watched.warnings.empty());
  // Something moves, and then nothing does again.
  set.Submit(1, "z", 40);
  EXPECT_TRUE(set.Find(41).watched.warnings.empty());
  EXPECT_EQ(set.Find(50).watched.warnings.size(), 1u);
}

// A meeting of GPUs may be late, and nobody waits in it.
void NamesWhoKeepsJoinedRanksWaiting(bool has_meeting) {
  Set set(Limits(60, 200, 0));
  if (has_meeting) set.Submit(0, kMeetingOfLanes, 0);
  set.matcher.Heard(Matcher::Clock::time_point{});
  EXPECT_TRUE(set.Find(100).watched.stalls.empty());  // nobody waits
  set.matcher.Heard(Matcher::Clock::time_point{std::chrono::seconds(100)});
  set.matcher.Join(0);
  EXPECT_TRUE(set.Find(159).watched.stalls.empty());
  auto stalls = set.Find(160).watched.stalls;
  ASSERT_EQ(stalls.size(), 1u);
  EXPECT_TRUE((stalls[0].missing == std::vector<int>{11}));
  EXPECT_TRUE((stalls[0].names == std::vector<std::string>{"join"}));
  EXPECT_TRUE(set.Find(161).watched.stalls.empty());
  // The other one is slow, but trains.
  set.matcher.Heard(Matcher::Clock::time_point{std::chrono::seconds(170)});
  EXPECT_TRUE(set.Find(229).watched.stalls.empty());
  EXPECT_EQ(set.Find(230).watched.stalls.size(), 1u);
  EXPECT_TRUE(set.Find(289).watched.stalls.empty());
  EXPECT_EQ(set.Find(290).watched.stalls.size(), 1u);
  EXPECT_FALSE(set.Find(369).watched.lost.has_value());
  const auto lost = set.Find(370).watched.lost;
  ASSERT_TRUE(lost.has_value());
  EXPECT_TRUE((lost->missing == std::vector<int>{11}));
}

TEST(stall_finder_names_who_keeps_joined_ranks_waiting) {
  NamesWhoKeepsJoinedRanksWaiting(false);
  NamesWhoKeepsJoinedRanksWaiting(true);
}

}  // namespace
}  // namespace hvd
