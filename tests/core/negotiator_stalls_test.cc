// SPDX-License-Identifier: Apache-2.0
// Negotiator and Leader: names that nobody matches, and ranks that keep
// others waiting.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/control/negotiator.h"
#include "core/control/set_changes.h"
#include "harness.h"
#include "negotiator_world.h"

namespace hvd {
namespace {

bool IsQuiet(const Leader::Watched& watched) {
  return watched.warnings.empty() && watched.stalls.empty() &&
         !watched.lost.has_value();
}

TEST(negotiator_silence_with_unmatched_names_is_reported_once) {
  World world(2);
  world.Submit(0, "loss/a", 1);
  world.Submit(0, "metric", 1);
  world.Submit(1, "loss_1/a", 1);
  world.Deliver();
  world.Pass(std::chrono::seconds(2));
  EXPECT_TRUE(IsQuiet(world.at(0).Watch(world.now())));
  world.Pass(std::chrono::seconds(2));
  auto warnings = world.at(0).Watch(world.now()).warnings;
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("rank 0: 'loss/a', 'metric'; rank 1: 'loss_1/a'"),
            std::string::npos);
  EXPECT_NE(warnings[0].find("look like one tensor under two names"),
            std::string::npos);
  world.Pass(std::chrono::seconds(2));
  EXPECT_TRUE(IsQuiet(world.at(0).Watch(world.now())));
  EXPECT_TRUE(world.Results(0, "metric").empty());  // it may still be right
}

TEST(negotiator_unmatched_names_are_those_of_ranks_that_have_not_joined) {
  World world(3);
  auto call = std::make_shared<JoinCall>();
  call->done = [](const Status&, int) {};
  world.at(2).Join(call);
  world.Submit(0, "a");
  world.Submit(1, "b");
  world.Deliver();
  world.Pass(std::chrono::seconds(7));
  EXPECT_EQ(world.at(0).Watch(world.now()).warnings.size(), 1u);
}

TEST(negotiator_eager_calls_in_opposite_order_that_match_later_are_not_failed) {
  // Two threads on each rank. The second of each comes late.
  World world(2);
  world.Submit(0, "a");
  world.Submit(1, "b");
  world.Deliver();
  world.Pass(std::chrono::seconds(7));
  EXPECT_EQ(world.at(0).Watch(world.now()).warnings.size(), 1u);
  world.Deliver();
  world.Submit(0, "b");
  world.Submit(1, "a");
  world.Deliver();
  for (int rank : {0, 1}) {
    ExpectDone(&world, rank, "a");
    ExpectDone(&world, rank, "b");
  }
}

TEST(negotiator_names_that_never_match_fail_at_the_limit_with_both_names) {
  // Eager calls (step 0), and steps of a tf.function.
  for (const int64_t step : {0, 7}) {
    Options options = Options::Defaults();
    options.stall_shutdown_s = 10;
    World world(3, options);
    world.Submit(0, "loss/a", step);
    world.Submit(2, "loss/a", step);
    world.Submit(1, "loss_1/a", step);
    world.Submit(1, "metric", step);
    world.Deliver();
    world.Pass(std::chrono::seconds(9));
    EXPECT_EQ(world.at(0).Watch(world.now()).warnings.size(), 1u);
    world.Deliver();
    EXPECT_TRUE(world.Results(0, "loss/a").empty());
    world.Pass(std::chrono::seconds(1));
    const auto watched = world.at(0).Watch(world.now());
    EXPECT_FALSE(watched.lost.has_value());  // no rank has failed
    world.Deliver();
    const std::string pair =
        "'loss/a' on ranks 0, 2 and 'loss_1/a' on rank 1 look like one tensor";
    for (int rank : {0, 2}) {
      ExpectFailed(&world, rank, "loss/a", StatusCode::kFailedPrecondition,
                   pair);
    }
    for (const char* name : {"loss_1/a", "metric"}) {
      ExpectFailed(&world, 1, name, StatusCode::kFailedPrecondition, pair);
    }
    // The job lives.
    for (int rank : {0, 1, 2}) world.Submit(rank, "metric", 100);
    world.Deliver();
    for (int rank : {0, 1, 2}) ExpectDone(&world, rank, "metric");
  }
}

TEST(negotiator_a_rank_that_waits_for_nothing_is_slow_and_no_mismatch) {
  Options options = Options::Defaults();
  options.stall_shutdown_s = 10;
  World world(3, options);
  world.Submit(0, "a");
  world.Submit(1, "b");
  world.Deliver();
  world.Pass(std::chrono::seconds(10));
  const auto watched = world.at(0).Watch(world.now());
  EXPECT_TRUE(watched.warnings.empty());
  EXPECT_TRUE(watched.lost.has_value());
}

TEST(negotiator_a_slow_rank_is_named_after_a_minute) {
  World world(3);
  for (int rank : {0, 2}) {
    for (const char* name : {"a", "b"}) world.Submit(rank, name, 1);
  }
  world.Deliver();
  world.Pass(std::chrono::seconds(59));
  EXPECT_TRUE(IsQuiet(world.at(0).Watch(world.now())));
  world.Pass(std::chrono::seconds(2));
  auto watched = world.at(0).Watch(world.now());
  ASSERT_EQ(watched.stalls.size(), 1u);
  EXPECT_TRUE(watched.stalls[0].missing == std::vector<int>{1});
  std::sort(watched.stalls[0].names.begin(), watched.stalls[0].names.end());
  EXPECT_TRUE((watched.stalls[0].names == std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(watched.stalls[0].waited_s, 61.0);
  EXPECT_FALSE(watched.lost.has_value());
}

TEST(negotiator_a_stall_is_told_ever_more_seldom) {
  World world(2);
  world.Submit(0, "a", 1);
  world.Deliver();
  std::vector<int> told_s;
  for (int age_s = 10; age_s <= 1000; age_s += 10) {
    world.Pass(std::chrono::seconds(10));
    if (!IsQuiet(world.at(0).Watch(world.now()))) told_s.push_back(age_s);
  }
  EXPECT_TRUE((told_s == std::vector<int>{60, 120, 240, 480, 960}));
}

TEST(negotiator_what_stalls_together_is_told_together) {
  World world(2);
  for (const char* name : {"a", "b", "c"}) {
    world.Submit(0, name, 1);
    world.Deliver();
    world.Pass(std::chrono::seconds(20));
  }
  auto watched = world.at(0).Watch(world.now());  // 60, 40 and 20 s
  ASSERT_EQ(watched.stalls.size(), 1u);
  EXPECT_EQ(watched.stalls[0].names.size(), 2u);
  world.Pass(std::chrono::seconds(20));
  EXPECT_TRUE(IsQuiet(world.at(0).Watch(world.now())));
}

TEST(negotiator_a_stall_loses_the_job_at_the_limit_and_not_before) {
  Options options = Options::Defaults();
  options.stall_shutdown_s = 100;
  World world(3, options);
  world.Submit(0, "a", 1);
  world.Deliver();
  world.Pass(std::chrono::seconds(99));
  EXPECT_FALSE(world.at(0).Watch(world.now()).lost.has_value());
  world.Pass(std::chrono::seconds(1));
  auto lost = world.at(0).Watch(world.now()).lost;
  ASSERT_TRUE(lost.has_value());
  EXPECT_TRUE((lost->missing == std::vector<int>{1, 2}));
  EXPECT_TRUE(lost->names == std::vector<std::string>{"a"});
}

TEST(negotiator_ranks_that_meet_late_for_a_lane_are_no_stall) {
  Options options = Options::Defaults();
  options.stall_shutdown_s = 100;
  World world(2, options);
  world.Submit(0, kMeetingOfLanes);
  world.Deliver();
  for (int seconds = 0; seconds < 200; seconds += 10) {
    world.Pass(std::chrono::seconds(10));
    const auto watched = world.at(0).Watch(world.now());
    EXPECT_TRUE(watched.stalls.empty());
    EXPECT_FALSE(watched.lost.has_value());
  }
  // Nor does anybody know that name who reads of a silent rank.
  world.Submit(0, "a");
  std::vector<std::string> waiting;
  world.at(0).AppendWaiting(&waiting);
  EXPECT_TRUE(waiting == std::vector<std::string>{"a"});
}

TEST(negotiator_a_slow_rank_below_the_limit_is_never_lost) {
  Options options = Options::Defaults();
  options.stall_shutdown_s = 100;
  World world(2, options);
  for (int step = 1; step < 50; ++step) {
    world.Submit(0, "a", step);
    world.Deliver();
    world.Pass(std::chrono::seconds(99));
    EXPECT_FALSE(world.at(0).Watch(world.now()).lost.has_value());
    world.Submit(1, "a", step);
    world.Deliver();
  }
}

TEST(negotiator_a_name_asked_for_again_waits_from_then_on) {
  Options options = Options::Defaults();
  options.stall_shutdown_s = 100;
  World world(2, options);
  // A call that this rank refuses is over here, while the peer has yet to ask.
  world.Submit(0, "a", 0, World::Plain(), 0, InvalidArgument("no"));
  world.Submit(0, "a");
  world.Deliver();
  world.Pass(std::chrono::seconds(90));
  world.Submit(1, "a");
  world.Deliver();
  EXPECT_EQ(world.Results(1, "a").size(), 1u);
  world.Pass(std::chrono::seconds(90));
  EXPECT_FALSE(world.at(0).Watch(world.now()).lost.has_value());
  world.Pass(std::chrono::seconds(10));
  EXPECT_TRUE(world.at(0).Watch(world.now()).lost.has_value());
}

TEST(negotiator_ranks_that_join_wait_from_the_last_join_or_its_end_on) {
  World world(3);
  const auto join = [&](int rank) {
    auto call = std::make_shared<JoinCall>();
    call->ticket = 100 + static_cast<uint64_t>(rank);
    call->done = [](const Status&, int) {};
    world.at(rank).Join(call);
  };
  const auto pass = [&](int seconds) {
    world.Deliver();
    world.Pass(std::chrono::seconds(seconds));
    return IsQuiet(world.at(0).Watch(world.now()));
  };
  EXPECT_TRUE(pass(100));
  join(0);
  EXPECT_TRUE(pass(50));
  join(1);
  EXPECT_TRUE(pass(50));
  EXPECT_TRUE(world.at(1).Cancel(101, kNan));
  EXPECT_TRUE(pass(59));
  EXPECT_FALSE(pass(1));
}

TEST(negotiator_a_call_that_changes_sets_is_a_stall_of_its_own) {
  Options options = Options::Defaults();
  options.stall_shutdown_s = 200;
  World world(2, options);
  world.at(0).LeadSets(
      std::make_unique<SetChanges>(2, std::vector<std::vector<int>>{}));
  const auto ask = [&](int rank) {
    world.at(rank).Tell(SetRequest{false, {0}, 0, {}});
    world.Deliver();
  };
  const auto pass = [&](int seconds) {
    world.Pass(std::chrono::seconds(seconds));
    return world.at(0).Watch(world.now());
  };
  ask(0);
  EXPECT_TRUE(pass(59).stalls.empty());
  EXPECT_EQ(pass(1).stalls.size(), 1u);
  EXPECT_TRUE(pass(59).stalls.empty());
  EXPECT_EQ(pass(1).stalls.size(), 1u);
  ask(1);
  EXPECT_TRUE(pass(60).stalls.empty());
  // The next call has gaps of its own.
  ASSERT_EQ(world.at(0).TakeSetChanges().size(), 1u);
  world.at(0).Tell(SetAnswer{1, ResourceExhausted("no room")});
  ask(1);
  ASSERT_EQ(world.at(0).TakeSetChanges().size(), 1u);
  const auto stalls = pass(60).stalls;
  ASSERT_EQ(stalls.size(), 1u);
  EXPECT_TRUE(stalls[0].missing == std::vector<int>{0});
  EXPECT_FALSE(pass(139).lost.has_value());
  EXPECT_TRUE(pass(1).lost.has_value());
}

}  // namespace
}  // namespace hvd
