// SPDX-License-Identifier: Apache-2.0
// Negotiator and Leader: failures and aborted steps, which hit each rank once.
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/control/negotiator.h"
#include "harness.h"
#include "negotiator_world.h"

namespace hvd {
namespace {

TEST(negotiator_a_local_error_fails_the_peers_too) {
  World world(3);
  world.Submit(0, "x", 1);
  world.Submit(1, "x", 1, World::Plain(), 0, InvalidArgument("no root 7"));
  ExpectFailed(&world, 1, "x", StatusCode::kInvalidArgument, "no root 7");
  world.Submit(2, "x", 1);
  world.Deliver();
  for (int rank : {0, 2}) {
    ExpectFailed(&world, rank, "x", StatusCode::kInvalidArgument,
                 "'x' failed on rank 1: no root 7");
  }
  // The next time all is well.
  for (int rank = 0; rank < 3; ++rank) world.Submit(rank, "x", 2);
  world.Deliver();
  for (int rank = 0; rank < 3; ++rank) ExpectDone(&world, rank, "x");
}

TEST(negotiator_a_cancel_is_too_late_once_the_log_has_decided) {
  World world(2);
  const uint64_t decided = world.Submit(1, "x", 21);
  const uint64_t lost = world.Submit(1, "y", 22);
  EXPECT_TRUE(world.at(1).Cancel(lost, kNan));
  world.Submit(0, "x", 11);
  world.Deliver();
  EXPECT_FALSE(world.at(1).Cancel(decided, kNan));
  for (int rank : {0, 1}) ExpectDone(&world, rank, "x");
  ExpectFailed(&world, 1, "y", StatusCode::kCancelled, "NaN");
  EXPECT_EQ(world.Results(1, "x").size(), 0u);  // not told again
}

TEST(negotiator_an_aborted_step_fails_peers_that_wait_for_it) {
  World world(2);
  uint64_t ticket = world.Submit(1, "x", 21);
  world.Submit(0, "x2", 11);
  world.Submit(0, "y", 11);
  world.Deliver();
  world.at(1).Cancel(ticket, kNan);
  ExpectFailed(&world, 1, "x", StatusCode::kCancelled, "NaN");
  world.Deliver();
  // Rank 0 has not asked for x yet. It is told when it does. Then all else of
  // its step fails as well.
  EXPECT_TRUE(world.Results(0, "y").empty());
  world.Submit(0, "x", 11);
  world.Deliver();
  for (const char* name : {"x", "y", "x2"}) {
    ExpectFailed(&world, 0, name, StatusCode::kPeerLost,
                 "rank 1 aborted its step: NaN in 'loss'");
  }
  // Both go on with their next step: nothing is left of the old one.
  for (const char* name : {"x", "y", "x2"}) {
    world.Submit(0, name, 12);
    world.Submit(1, name, 22);
  }
  world.Deliver();
  for (const char* name : {"x", "y", "x2"}) {
    ExpectDone(&world, 0, name);
    ExpectDone(&world, 1, name);
  }
}

TEST(negotiator_an_aborted_step_is_known_by_what_was_agreed_in_it) {
  World world(3);
  std::vector<uint64_t> tickets;
  for (int rank = 0; rank < 3; ++rank) {
    tickets.push_back(world.Submit(rank, "x", 10 * rank + 1));
  }
  world.Submit(0, "y", 1);
  world.set_busy(4);  // x is agreed, and still to be applied
  world.Deliver();
  world.Submit(2, "z", 21);
  world.Deliver();
  world.at(1).Cancel(tickets[1], kNan);
  world.Deliver();
  ExpectFailed(&world, 0, "y", StatusCode::kPeerLost, "rank 1 aborted");
  ExpectFailed(&world, 2, "z", StatusCode::kPeerLost, "rank 1 aborted");
  // More of the lost steps fails at once.
  world.Submit(0, "z", 1);
  world.Deliver();
  ExpectFailed(&world, 0, "z", StatusCode::kPeerLost, "rank 1 aborted");
  // x itself is on its way: it completes, and rank 1's result is dropped.
  world.set_busy(0);
  world.Deliver();
  ExpectDone(&world, 0, "x");
  ExpectDone(&world, 2, "x");
  ExpectFailed(&world, 1, "x", StatusCode::kCancelled, "NaN");
  EXPECT_EQ(world.Batches(1).size(), 1u);
}

TEST(negotiator_a_failure_does_not_overtake_what_was_agreed_before) {
  World world(2);
  world.set_busy(4);  // "x" is agreed in step 1, and still to be applied
  const std::vector<uint64_t> lost = {world.Submit(0, "x", 1),
                                      world.Submit(1, "x", 101)};
  world.Deliver();
  for (int rank : {0, 1}) world.at(rank).Cancel(lost[rank], kNan);
  world.Deliver();
  world.at(1).Cancel(world.Submit(1, "x", 102), kNan);
  world.Deliver();
  world.Submit(0, "x", 2);  // runs into the abort of step 102
  world.Deliver();
  EXPECT_TRUE(world.Results(0, "x").size() == 1);  // the wire is still busy
  world.set_busy(0);
  world.Deliver();
  ExpectFailed(&world, 0, "x", StatusCode::kPeerLost, "rank 1 aborted");
  for (int rank : {0, 1}) world.Submit(rank, "x", 100 * rank + 3);
  world.Deliver();
  EXPECT_TRUE(world.Steps(0, "x") == std::vector<int64_t>({1, 3}));
  EXPECT_TRUE(world.Steps(1, "x") == std::vector<int64_t>({101, 103}));
  ExpectDone(&world, 0, "x");
  EXPECT_EQ(world.Results(1, "x").size(), 3u);
}

TEST(negotiator_a_name_that_is_agreed_twice_travels_in_that_order) {
  World world(2);
  world.set_busy(4);
  Signature other = World::Plain();
  other.dtype = other.wire_dtype = DataType::kFloat64;
  std::vector<uint64_t> lost;
  for (int rank : {0, 1}) {
    world.Submit(rank, "first", 7 + rank, other);
    lost.push_back(world.Submit(rank, "x", 100 * rank + 1));
  }
  world.Deliver();
  for (int rank : {0, 1}) world.at(rank).Cancel(lost[rank], kNan);
  world.Deliver();
  // Would fit into the batch of "first".
  for (int rank : {0, 1}) world.Submit(rank, "x", 100 * rank + 2, other);
  world.Deliver();
  world.set_busy(0);
  world.Deliver();
  for (int rank : {0, 1}) {
    const std::vector<int64_t> steps = {100 * rank + 1, 100 * rank + 2};
    EXPECT_TRUE(world.Steps(rank, "x") == steps);
    EXPECT_EQ(world.Batches(rank).size(), 3u);
  }
}

TEST(negotiator_a_step_aborted_before_it_submits_fails_who_waits_already) {
  World world(3);
  for (const char* name : {"x", "y"}) world.Submit(0, name, 1);
  world.Deliver();
  world.at(1).AbortStep({"x", 0}, 101, kNan);
  world.Deliver();
  ExpectFailed(&world, 0, "x", StatusCode::kPeerLost, "rank 1 aborted");
  ExpectFailed(&world, 0, "y", StatusCode::kPeerLost, "rank 1 aborted");
  world.Submit(2, "x", 201);
  world.Deliver();
  ExpectFailed(&world, 2, "x", StatusCode::kPeerLost, "rank 1 aborted");
  for (int rank : {0, 1, 2}) world.Submit(rank, "x", 100 * rank + 2);
  world.Deliver();
  for (int rank : {0, 1, 2}) ExpectDone(&world, rank, "x");
}

TEST(negotiator_a_rank_that_is_a_step_ahead_keeps_that_step) {
  World world(3);
  world.at(1).Cancel(world.Submit(1, "x", 101), kNan);
  world.Deliver();
  for (const char* name : {"z", "x"}) world.Submit(1, name, 102);
  world.Deliver();
  // The others run into the abort, one of them while "z" waits.
  for (const char* name : {"z", "x"}) world.Submit(0, name, 1);
  world.Deliver();
  world.Submit(2, "x", 201);
  world.Deliver();
  ExpectFailed(&world, 0, "x", StatusCode::kPeerLost, "rank 1 aborted");
  ExpectFailed(&world, 0, "z", StatusCode::kPeerLost, "rank 1 aborted");
  ExpectFailed(&world, 2, "x", StatusCode::kPeerLost, "rank 1 aborted");
  ExpectFailed(&world, 1, "x", StatusCode::kCancelled, "NaN");
  // Their next step is the one in which rank 1 waits.
  for (const char* name : {"x", "z"}) {
    for (int rank : {0, 2}) world.Submit(rank, name, 100 * rank + 2);
  }
  world.Deliver();
  for (const char* name : {"x", "z"}) {
    for (int rank : {0, 1, 2}) ExpectDone(&world, rank, name);
    EXPECT_TRUE(world.Steps(1, name) == std::vector<int64_t>({102}));
  }
}

TEST(negotiator_all_ranks_may_abort_the_same_step) {
  World world(2);
  // Both lose their step for a reason of their own, at the same time, with
  // different tensors under way.
  for (int64_t step = 1; step < 50; ++step) {
    std::vector<uint64_t> tickets = {world.Submit(0, "x", step),
                                     world.Submit(1, "y", 1000 + step)};
    if (step % 2 == 0) tickets.push_back(world.Submit(0, "w", step));
    if (step % 3 == 0) world.Deliver();
    world.at(0).Cancel(tickets[0], kNan);
    world.at(1).Cancel(tickets[1], kNan);
    if (step % 2 == 0) world.at(0).Cancel(tickets[2], kNan);
    world.Deliver();
    EXPECT_EQ(world.Results(0, "x").size(), 1u);
    EXPECT_EQ(world.Results(1, "y").size(), 1u);
    world.Results(0, "w");
  }
  // Nothing of that is left over.
  int whole = 0;
  for (int64_t step = 100; step < 103; ++step) {
    for (int rank = 0; rank < 2; ++rank) {
      for (const char* name : {"x", "y"}) {
        world.Submit(rank, name, 1000 * rank + step);
      }
    }
    world.Deliver();
    bool all = true;
    for (int rank = 0; rank < 2; ++rank) {
      for (const char* name : {"x", "y"}) {
        auto results = world.Results(rank, name);
        all = all && results.size() == 1 && results[0].ok();
      }
    }
    whole += all ? 1 : 0;
  }
  EXPECT_EQ(whole, 3);
}

TEST(negotiator_a_disagreement_takes_the_rest_of_the_step_along) {
  World world(2);
  Signature other = World::Plain();
  other.dtype = other.wire_dtype = DataType::kInt32;
  uint64_t waiting = world.Submit(0, "y", 5);
  world.Submit(0, "x", 5);
  world.Submit(1, "x", 6, other);
  world.Deliver();
  ExpectFailed(&world, 0, "y", StatusCode::kPeerLost,
               "Its step was aborted: The ranks disagree on the dtype");
  world.at(0).Cancel(waiting, kNan);  // as TensorFlow does, too late
  world.Deliver();
  for (int rank = 0; rank < 2; ++rank) {
    world.Results(rank, "x");
    world.Submit(rank, "y", 10 + rank);
  }
  world.Deliver();
  ExpectDone(&world, 0, "y");
  ExpectDone(&world, 1, "y");
}

// Rank 0 refuses a call, which is over there, while rank 1 has yet to make it.
// So rank 0's next submission of the name waits behind it.
TEST(negotiator_an_aborted_step_takes_later_submissions_along) {
  World world(2);
  world.Submit(0, "x", 1, World::Plain(), 0, InvalidArgument("no root 7"));
  const uint64_t lost = world.Submit(0, "x", 2);
  world.Deliver();
  EXPECT_TRUE(world.at(0).Cancel(lost, kNan));
  world.Deliver();
  EXPECT_EQ(world.Results(0, "x").size(), 2u);
  // Rank 1 loses a step to each of the two.
  world.Submit(1, "x", 101);
  world.Deliver();
  ExpectFailed(&world, 1, "x", StatusCode::kPeerLost, "rank 0 aborted");
  world.Submit(1, "x", 102);
  world.Deliver();
  ExpectFailed(&world, 1, "x", StatusCode::kInvalidArgument, "no root 7");
  // Its next step meets rank 0's next one, and not the one that is lost.
  for (int rank : {0, 1}) world.Submit(rank, "x", 100 * rank + 3);
  world.Deliver();
  for (int rank : {0, 1}) {
    ExpectDone(&world, rank, "x");
    EXPECT_TRUE(world.Steps(rank, "x") ==
                std::vector<int64_t>({100 * rank + 3}));
  }
}

TEST(negotiator_a_peers_abort_fails_the_later_submission_and_not_the_first) {
  World world(2);
  world.Submit(0, "x", 1, World::Plain(), 0, InvalidArgument("no root 7"));
  EXPECT_EQ(world.Results(0, "x").size(), 1u);
  world.Submit(0, "x", 2);
  for (int rank : {0, 1}) world.Submit(rank, "y", 100 * rank + 2);
  world.Deliver();  // so that steps 2 and 102 belong together
  world.at(1).AbortStep({"z", 0}, 102, kNan);
  world.Deliver();
  ExpectFailed(&world, 0, "x", StatusCode::kPeerLost, "rank 1 aborted");
  EXPECT_FALSE(world.at(0).idle());
  world.Submit(1, "x", 103);
  world.Deliver();
  ExpectFailed(&world, 1, "x", StatusCode::kInvalidArgument, "no root 7");
  EXPECT_TRUE(world.at(0).idle());
}

TEST(negotiator_a_doomed_submission_does_not_fail_the_one_before_it) {
  World world(2);
  world.Submit(0, "x", 1, World::Plain(), 0, InvalidArgument("no root 7"));
  world.at(0).Cancel(world.Submit(0, "y", 2), kNan);
  world.Deliver();
  world.Submit(0, "x", 2);  // of the step that is lost
  world.Deliver();
  EXPECT_EQ(world.Results(0, "x").size(), 2u);
  // What rank 0 refused still waits for rank 1's call.
  EXPECT_FALSE(world.at(0).idle());
  world.Submit(1, "x", 101);
  world.Deliver();
  ExpectFailed(&world, 1, "x", StatusCode::kInvalidArgument, "no root 7");
  EXPECT_TRUE(world.at(0).idle());
}

// Whatever ranks do, every submission is answered once, and once no rank
// aborts any more the steps complete. (A rank that never heard of the last
// abort in its own step loses its next one to it.)
TEST(negotiator_random_steps_with_aborts_never_lose_an_entry) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    const int size = 2 + static_cast<int>(random() % 3);
    World world(size);
    const int names = 1 + static_cast<int>(random() % 5);
    std::map<std::pair<int, std::string>, int> submitted;
    for (int64_t step = 1; step <= 8; ++step) {
      std::vector<std::pair<int, uint64_t>> tickets;
      for (int rank = 0; rank < size; ++rank) {
        const int some = static_cast<int>(random() % (names + 1));
        const bool aborts = random() % 4 == 0;
        for (int i = 0; i < (aborts ? some : names); ++i) {
          const std::string name = "t" + std::to_string(i);
          ++submitted[{rank, name}];
          uint64_t ticket = world.Submit(rank, name, 100 * rank + step);
          if (aborts) tickets.emplace_back(rank, ticket);
          if (random() % 3 == 0) world.Deliver();
        }
      }
      for (auto& [rank, ticket] : tickets) {
        world.at(rank).Cancel(ticket, kNan);
        if (random() % 2 == 0) world.Deliver();
      }
      world.Deliver();
      // TensorFlow would not run the next step with this one pending: end it.
      for (int rank = 0; rank < size; ++rank) {
        for (uint64_t ticket = 1; ticket < 4000; ++ticket) {
          if (world.at(rank).idle()) break;
          world.at(rank).Cancel(ticket, kNan);
        }
      }
      world.Deliver();
    }
    const int64_t quiet_steps = 10;
    int whole = 0;
    bool last_whole = false;
    for (int64_t step = 50; step < 50 + quiet_steps; ++step) {
      for (int i = 0; i < names; ++i) {
        for (int rank = 0; rank < size; ++rank) {
          const std::string name = "t" + std::to_string(i);
          ++submitted[{rank, name}];
          world.Submit(rank, name, 100 * rank + step);
        }
      }
      world.Deliver();
      bool all = true;
      for (int rank = 0; rank < size; ++rank) all &= world.at(rank).idle();
      whole += all ? 1 : 0;
      last_whole = all;
    }
    EXPECT_TRUE(whole >= quiet_steps - 3);
    EXPECT_TRUE(last_whole);
    for (auto& [key, count] : submitted) {
      EXPECT_EQ(world.Results(key.first, key.second).size(),
                static_cast<size_t>(count));
    }
  }
}

}  // namespace
}  // namespace hvd
