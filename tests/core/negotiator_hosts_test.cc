// SPDX-License-Identifier: Apache-2.0
// Negotiator and Leader of ranks on several hosts, whose first ranks gather.
#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "harness.h"
#include "negotiator_world.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

// Longer than anything is held.
constexpr milliseconds kHeld{25};

// Ranks 0, 2, 5 | 1, 4, 7 | 3, 6, 8. Gatherers: 0, 1, 3.
const std::vector<int> kHosts = {0, 1, 0, 2, 1, 0, 2, 1, 2};
constexpr int kSize = 9;

World Hosts(Options options = Options::Defaults()) {
  return World(kSize, options, kHosts);
}

void SubmitAll(World* world, const std::string& name, int64_t step,
               const std::vector<int>& but = {}) {
  for (int rank = 0; rank < kSize; ++rank) {
    if (std::count(but.begin(), but.end(), rank) > 0) continue;
    // A step's number means something on its own rank only.
    world->Submit(rank, name, step == 0 ? 0 : step + 100 * rank);
  }
}

void ExpectAllDone(World* world, const std::string& name) {
  for (int rank = 0; rank < kSize; ++rank) ExpectDone(world, rank, name);
}

// After it "a", "b" and "c" have numbers.
void AgreeOnce(World* world) {
  for (const char* name : {"a", "b", "c"}) SubmitAll(world, name, 1);
  world->Deliver();
  for (const char* name : {"a", "b", "c"}) ExpectAllDone(world, name);
}

TEST(hosts_a_step_costs_a_message_for_each_host_and_neighbour) {
  World world = Hosts();
  AgreeOnce(&world);
  for (int64_t step = 2; step < 5; ++step) {
    for (const char* name : {"a", "b", "c"}) SubmitAll(&world, name, step);
    world.Deliver();
    for (const char* name : {"a", "b", "c"}) ExpectAllDone(&world, name);
    for (int rank = 0; rank < kSize; ++rank) {
      EXPECT_TRUE(world.Batches(rank) == world.Batches(0));
    }
    // The leader's neighbours and two hosts; a report and the log to two
    // neighbours; a report.
    EXPECT_EQ(world.messages_in_last_delivery(0), 4);
    for (int rank : {1, 3}) {
      EXPECT_EQ(world.messages_in_last_delivery(rank), 3);
    }
    for (int rank : {2, 4, 5, 6, 7, 8}) {
      EXPECT_EQ(world.messages_in_last_delivery(rank), 1);
    }
  }
}

// The leader has what whole hosts submit apart from the rest. Whichever comes
// first, and under whichever name for the key, they meet.
TEST(hosts_what_a_host_submits_meets_what_ranks_submit) {
  for (int late = 0; late < kSize; ++late) {
    World world = Hosts();
    AgreeOnce(&world);
    SubmitAll(&world, "a", 2, {late});
    world.Deliver();
    world.Pass(kHeld);
    world.Deliver();  // in part, from the host of `late`
    EXPECT_TRUE(world.Results(0, "a").empty());
    world.Submit(late, "a", 2 + 100 * late);
    world.Deliver();
    world.Pass(kHeld);
    world.Deliver();
    ExpectAllDone(&world, "a");
    // And in the next step nothing is in the way.
    SubmitAll(&world, "a", 3);
    world.Deliver();
    ExpectAllDone(&world, "a");
  }
}

TEST(hosts_a_slow_rank_is_named_and_not_its_host) {
  World world = Hosts();
  AgreeOnce(&world);
  SubmitAll(&world, "a", 2, {6});
  world.Deliver();
  world.Pass(kHeld);
  world.Deliver();
  world.Pass(std::chrono::seconds(61));
  const auto watched = world.at(0).Watch(world.now());
  ASSERT_EQ(watched.stalls.size(), 1u);
  EXPECT_TRUE(watched.stalls[0].missing == std::vector<int>{6});
  EXPECT_TRUE(watched.stalls[0].reporters == std::vector<int>{3});
  EXPECT_TRUE(watched.stalls[0].names == std::vector<std::string>{"a"});
  EXPECT_TRUE(watched.stalls[0].waited_s >= 61);
  world.Submit(6, "a", 2);
  world.Deliver();
  world.Pass(kHeld);
  world.Deliver();
  ExpectAllDone(&world, "a");
}

TEST(hosts_names_that_whole_hosts_do_not_share_are_a_mismatch) {
  Options options = Options::Defaults();
  options.stall_shutdown_s = 10;
  World world = Hosts(options);
  AgreeOnce(&world);
  for (int rank = 0; rank < kSize; ++rank) {
    world.Submit(rank, kHosts[rank] == 1 ? "a" : "b", 2);
  }
  world.Deliver();
  world.Pass(std::chrono::seconds(10));
  const auto watched = world.at(0).Watch(world.now());
  ASSERT_EQ(watched.warnings.size(), 1u);
  EXPECT_NE(watched.warnings[0].find("ranks 1, 4, 7: 'a'"), std::string::npos);
  EXPECT_FALSE(watched.lost.has_value());
  world.Deliver();
  for (int rank = 0; rank < kSize; ++rank) {
    ExpectFailed(&world, rank, kHosts[rank] == 1 ? "a" : "b",
                 StatusCode::kFailedPrecondition, "");
  }
  SubmitAll(&world, "c", 3);
  world.Deliver();
  ExpectAllDone(&world, "c");
}

TEST(hosts_an_aborted_step_fails_once_everywhere) {
  // A leader's neighbour, a gatherer, and one that only reports.
  for (const int aborting : {2, 3, 7}) {
    World world = Hosts();
    AgreeOnce(&world);
    // "a" waits for rank 4 alone, whose host holds it. Whole hosts have "b".
    SubmitAll(&world, "a", 2, {4});
    for (int rank = 0; rank < kSize; ++rank) {
      if (kHosts[rank] != 1) world.Submit(rank, "b", 2 + 100 * rank);
    }
    const uint64_t ticket = world.Submit(aborting, "c", 2 + 100 * aborting);
    world.Deliver();
    EXPECT_TRUE(world.at(aborting).Cancel(ticket, kNan));
    world.Deliver();
    world.Pass(kHeld);
    world.Deliver();
    world.Submit(4, "a", 2 + 100 * 4);
    for (int rank : {1, 4, 7}) world.Submit(rank, "b", 2 + 100 * rank);
    world.Deliver();
    world.Pass(kHeld);
    world.Deliver();
    for (int rank = 0; rank < kSize; ++rank) {
      for (const char* name : {"a", "b"}) {
        const std::vector<Status> results = world.Results(rank, name);
        ASSERT_EQ(results.size(), 1u);
        EXPECT_FALSE(results[0].ok());
      }
    }
    // It does not spill into the next step.
    for (const char* name : {"a", "b", "c"}) SubmitAll(&world, name, 3);
    world.Deliver();
    world.Pass(kHeld);
    world.Deliver();
    for (const char* name : {"a", "b"}) ExpectAllDone(&world, name);
    for (int rank = 0; rank < kSize; ++rank) {
      EXPECT_TRUE(world.Results(rank, "c").back().ok());
    }
  }
}

// While a host's numbers are taken in, some may disagree, and the steps of all
// that follow be lost.
TEST(hosts_a_disagreement_takes_the_rest_of_the_step_along) {
  World world = Hosts();
  AgreeOnce(&world);
  Signature other = World::Plain();
  other.shapes = {{5}};
  world.Submit(8, "a", 802, other);
  SubmitAll(&world, "a", 2, {8});
  SubmitAll(&world, "b", 2, {3});
  world.Deliver();
  world.Pass(kHeld);
  world.Deliver();
  for (int rank = 0; rank < kSize; ++rank) {
    ExpectFailed(&world, rank, "a", StatusCode::kFailedPrecondition,
                 "disagree on the shape");
    if (rank == 3) continue;
    ExpectFailed(&world, rank, "b", StatusCode::kPeerLost,
                 "Its step was aborted");
  }
  // Now a whole host finds out with its first number, and has told the second.
  world.Submit(8, "a", 803, other);
  SubmitAll(&world, "a", 3, {1, 4, 7, 8});
  world.Deliver();
  world.Pass(kHeld);
  world.Deliver();
  for (int rank : {1, 4, 7}) {
    for (const char* name : {"a", "b"}) {
      world.Submit(rank, name, 3 + 100 * rank);
    }
  }
  world.Deliver();
  for (int rank : {1, 4, 7}) {
    ExpectFailed(&world, rank, "b", StatusCode::kPeerLost,
                 "Its step was aborted");
  }
  SubmitAll(&world, "b", 4);
  world.Deliver();
  ExpectAllDone(&world, "b");
}

TEST(hosts_of_a_rank_that_has_joined_do_not_hold_the_others_up) {
  for (const int joined : {1, 4}) {
    World world = Hosts();
    AgreeOnce(&world);
    std::vector<int> told;
    const auto join = [&](int rank) {
      auto call = std::make_shared<JoinCall>();
      call->done = [&told](const Status&, int last) { told.push_back(last); };
      world.at(rank).Join(call);
    };
    // Whole hosts have "a" already.
    for (int rank = 0; rank < kSize; ++rank) {
      if (kHosts[rank] != 1) world.Submit(rank, "a", 2 + 100 * rank);
    }
    world.Deliver();
    join(joined);
    world.Deliver();
    for (int rank : {1, 4, 7}) {
      if (rank != joined) world.Submit(rank, "a", 2 + 100 * rank);
    }
    SubmitAll(&world, "b", 2, {joined});
    world.Deliver();
    for (int rank = 0; rank < kSize; ++rank) {
      EXPECT_EQ(world.Batches(rank).back().size(), 2u);
      if (rank == joined) continue;
      for (const char* name : {"a", "b"}) ExpectDone(&world, rank, name);
    }
    for (int rank = 0; rank < kSize; ++rank) {
      if (rank != joined) join(rank);
    }
    world.Deliver();
    EXPECT_EQ(told, std::vector<int>(kSize, told.empty() ? -1 : told[0]));
    // All are back, and held again.
    SubmitAll(&world, "c", 3, {joined});
    world.Deliver();
    EXPECT_EQ(world.messages_in_last_delivery(1), 0);
    EXPECT_TRUE(world.Results(0, "c").empty());
    world.Submit(joined, "c", 3 + 100 * joined);
    world.Deliver();
    world.Pass(kHeld);
    world.Deliver();
    ExpectAllDone(&world, "c");
  }
}

TEST(hosts_a_failure_goes_to_the_hosts_that_it_concerns) {
  World world = Hosts();
  AgreeOnce(&world);
  world.Submit(7, "x", 5);
  world.at(4).EndScope("x", "it is over.");
  world.Deliver();
  ExpectFailed(&world, 7, "x", StatusCode::kPeerLost, "it is over.");
  // To the gatherer of that host, and from there to one rank.
  EXPECT_EQ(world.messages_in_last_delivery(0), 1);
  EXPECT_TRUE(world.at(1).log_seen() == world.at(0).log_seen());
  EXPECT_TRUE(world.at(7).log_seen() == world.at(0).log_seen());
  EXPECT_TRUE(world.at(4).log_seen() < world.at(0).log_seen());
  EXPECT_TRUE(world.at(3).log_seen() < world.at(0).log_seen());
  // Who has skipped it learns of it with the next record.
  SubmitAll(&world, "a", 2);
  world.Deliver();
  ExpectAllDone(&world, "a");
  for (int rank = 0; rank < kSize; ++rank) {
    EXPECT_EQ(world.at(rank).log_seen(), world.at(0).log_seen());
  }
}

// A rank may wait for a record that does not concern it, nor its host.
TEST(hosts_hear_of_the_end_of_the_log) {
  World world = Hosts();
  AgreeOnce(&world);
  world.Submit(7, "x", 5);
  world.at(4).EndScope("x", "it is over.");
  SubmitAll(&world, "b", 2, {0});
  world.Deliver();
  const Status left = PeerLost("rank 7 has left");
  const uint64_t last = world.at(7).log_seen();
  // Some hear of it before the log comes to that record, and some after.
  for (int rank : {3, 6, 4}) world.at(rank).EndAt(last, left);
  for (int rank : {0, 1, 2, 5, 8}) world.at(rank).EndAt(last, left);
  world.Deliver();
  for (int rank : {1, 2, 3, 4, 5, 6, 8}) {
    ExpectFailed(&world, rank, "b", StatusCode::kPeerLost, "rank 7 has left");
    EXPECT_TRUE(world.at(rank).is_closed());
  }
}

// What a gatherer took part in completes on its neighbours: it has handed on
// all of the log up to there.
TEST(hosts_a_gatherer_that_leaves_has_handed_on_the_log) {
  World world = Hosts();
  AgreeOnce(&world);
  SubmitAll(&world, "a", 2);
  SubmitAll(&world, "b", 2, {8});
  world.Deliver();
  const Status left = PeerLost("rank 1 has left");
  const uint64_t last = world.at(1).log_taken();
  for (int rank = 0; rank < kSize; ++rank) world.at(rank).EndAt(last, left);
  world.Deliver();
  ExpectAllDone(&world, "a");
  for (int rank = 0; rank < kSize - 1; ++rank) {
    ExpectFailed(&world, rank, "b", StatusCode::kPeerLost, "rank 1 has left");
  }
  world.Submit(4, "c", 3);
  ExpectFailed(&world, 4, "c", StatusCode::kPeerLost, "rank 1 has left");
}

TEST(hosts_reports_that_make_no_sense_are_refused) {
  World world = Hosts();
  AgreeOnce(&world);
  SubmitAll(&world, "a", 2);
  world.Deliver();
  const uint64_t seen = world.at(0).log_seen();
  const HostSubmissions good{{1, 4, 7}, {1, 2, 3}, {1}};
  const auto refused = [&](int from, uint64_t log_seen, HostItem item) {
    const Status status = world.at(0).HandleHostReport(
        from, {log_seen, {std::move(item)}}, world.now());
    return status.code() == StatusCode::kInternal;
  };
  EXPECT_TRUE(refused(4, seen, good));      // does not gather
  EXPECT_TRUE(refused(3, seen, good));      // another host's ranks
  EXPECT_TRUE(refused(1, seen + 1, good));  // a record that there is not
  EXPECT_TRUE(refused(1, 0, good));         // it has seen more
  for (const std::vector<int>& ranks :
       {std::vector<int>{}, {4, 1}, {4, 4}, {1, 4, 7, 8}, {1, 1 << 30}}) {
    HostSubmissions bad{ranks, std::vector<int64_t>(ranks.size()), {1}};
    EXPECT_TRUE(refused(1, seen, bad));
  }
  EXPECT_TRUE(refused(1, seen, HostSubmissions{{1, 4, 7}, {1, 2, 3}, {99}}));
  EXPECT_TRUE(refused(1, seen, HostSubmissions{{1, 4}, {1, 2}, {99}}));
  EXPECT_TRUE(refused(1, seen, HostMemberItem{2, Join{}}));
  EXPECT_TRUE(refused(1, seen, HostMemberItem{-1, Join{}}));
  EXPECT_FALSE(refused(1, seen, good));
  // To those who are not asked for it.
  const Report report{seen, {}};
  EXPECT_FALSE(world.at(0).HandleReport(4, report, world.now()).ok());
  EXPECT_FALSE(world.at(1).HandleReport(2, report, world.now()).ok());
  EXPECT_FALSE(world.at(2).HandleReport(5, report, world.now()).ok());
  EXPECT_FALSE(world.at(1).HandleReport(4, {seen + 1, {}}, world.now()).ok());
  EXPECT_FALSE(world.at(1).HandleHostReport(3, {seen, {}}, world.now()).ok());
  World one(3);
  EXPECT_FALSE(one.at(0).HandleHostReport(1, {0, {}}, one.now()).ok());
}

// An impossible range of ranks in a failure reaches no memory.
TEST(hosts_a_log_that_makes_no_sense_is_handed_on_unharmed) {
  World world = Hosts();
  const int most = std::numeric_limits<int>::max();
  const Failure failure{PeerLost("no"),
                        {{0, {"x", 0}, 0, {{5, 2}, {100, most}, {8, most}}}}};
  EXPECT_EQ(world.at(3).HandleLog({1, {failure}}).message(), "");
  ASSERT_EQ(world.at(3).TakeMessages().size(), 1u);
}

// No submission comes that would complete what whole hosts have submitted.
TEST(hosts_that_join_as_a_whole_keep_nobody_waiting) {
  World world = Hosts();
  AgreeOnce(&world);
  SubmitAll(&world, "a", 2, {1, 4, 7});
  world.Deliver();
  for (int rank : {1, 4, 7}) {
    auto call = std::make_shared<JoinCall>();
    call->done = [](const Status&, int) {};
    world.at(rank).Join(call);
  }
  world.Deliver();
  for (int rank : {0, 2, 3, 5, 6, 8}) ExpectDone(&world, rank, "a");
}

// An instance of a loop has given the name another number meanwhile.
TEST(hosts_that_know_a_name_by_two_numbers_disagree_at_once) {
  World world = Hosts();
  AgreeOnce(&world);
  SubmitAll(&world, "a", 2, {1, 4, 7});
  world.Deliver();
  Signature other = World::Plain();
  other.shapes = {{5}};
  for (int rank = 0; rank < kSize; ++rank) {
    world.Submit(rank, "a", 2 + 100 * rank, other, 1);
  }
  world.Deliver();
  ExpectAllDone(&world, "a");
  for (int rank : {1, 4, 7}) world.Submit(rank, "a", 2 + 100 * rank, other);
  world.Deliver();
  for (int rank = 0; rank < kSize; ++rank) {
    ExpectFailed(&world, rank, "a", StatusCode::kFailedPrecondition,
                 "disagree on the shape");
  }
}

TEST(hosts_that_have_just_asked_are_no_mismatch_yet) {
  World world = Hosts();
  AgreeOnce(&world);
  world.Pass(std::chrono::seconds(60));
  for (int rank = 0; rank < kSize; ++rank) {
    world.Submit(rank, kHosts[rank] == 1 ? "a" : "b", 2);
  }
  world.Deliver();
  world.Pass(std::chrono::seconds(1));
  EXPECT_TRUE(world.at(0).Watch(world.now()).warnings.empty());
}

}  // namespace
}  // namespace hvd
