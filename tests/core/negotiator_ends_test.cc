// SPDX-License-Identifier: Apache-2.0
// Negotiator and Leader: ranks that leave, and training loops that end.

#include "core/control/negotiator.h"
#include "harness.h"
#include "negotiator_world.h"

namespace hvd {
namespace {

TEST(negotiator_an_ended_scope_fails_who_goes_on) {
  World world(2);
  world.Submit(0, "gradient/a", 7);
  world.Deliver();
  world.at(1).EndScope("gradient/", "its loop ended at step 100.");
  world.Deliver();
  ExpectFailed(&world, 0, "gradient/a", StatusCode::kPeerLost,
               "will not come from rank 1: its loop ended at step 100.");
  world.Submit(0, "gradient/b", 8);
  world.Submit(0, "metric", 9);
  world.Deliver();
  ExpectFailed(&world, 0, "gradient/b", StatusCode::kPeerLost, "rank 1");
  EXPECT_TRUE(world.Results(0, "metric").empty());
  // It may take that back,
  world.at(1).EndScope("gradient/", "");
  world.Deliver();
  world.Submit(0, "gradient/c", 9);
  world.Deliver();
  EXPECT_TRUE(world.Results(0, "gradient/c").empty());
  world.Submit(1, "gradient/c", 3);
  world.at(1).EndScope("gradient/", "its loop ended again.");
  world.Deliver();
  ExpectDone(&world, 0, "gradient/c");
  // or begin another loop.
  world.Submit(1, "gradient/a", 3);
  world.Submit(1, "metric", 3);
  world.Deliver();
  world.Submit(0, "gradient/a", 10);
  world.Deliver();
  ExpectDone(&world, 0, "gradient/a");
  ExpectDone(&world, 0, "metric");
}

TEST(negotiator_scopes_that_all_ranks_have_ended_are_over) {
  World world(3);
  // Training loops end one rank after the other.
  for (int rank = 0; rank < 3; ++rank) {
    world.at(rank).EndScope("gradient/", "its loop ended.");
    world.at(rank).EndScope("data/", rank < 2 ? "it has left." : "");
    world.Deliver();
  }
  // Another loop, in which the ranks do not arrive together.
  for (int rank = 0; rank < 3; ++rank) {
    world.Submit(rank, "gradient/a", 20);
    world.Deliver();
  }
  for (int rank = 0; rank < 3; ++rank) ExpectDone(&world, rank, "gradient/a");
  // One rank has not left the other scope.
  world.Submit(2, "data/x");
  world.Deliver();
  ExpectFailed(&world, 2, "data/x", StatusCode::kPeerLost, "it has left.");
}

TEST(negotiator_the_last_step_of_a_loop_is_not_hurt_by_its_end) {
  World world(2);
  world.Submit(1, "gradient/a", 7);
  world.at(1).EndScope("gradient/", "it ended.");  // already submitted
  world.Deliver();
  world.Submit(0, "gradient/a", 7);
  world.Deliver();
  ExpectDone(&world, 0, "gradient/a");
  ExpectDone(&world, 1, "gradient/a");
}

TEST(negotiator_a_member_that_ended_leaves_nothing_waiting) {
  World world(3);
  for (int rank = 0; rank < 3; ++rank) world.Submit(rank, "x");
  world.Submit(0, "y");
  world.Submit(1, "y");
  world.Deliver();
  const Status left = PeerLost("rank 2 (far) has left: done");
  world.at(0).EndAt(world.at(2).log_seen(), left);
  world.at(1).EndAt(world.at(2).log_seen(), left);
  for (int rank : {0, 1}) {
    ExpectDone(&world, rank, "x");
    ExpectFailed(&world, rank, "y", StatusCode::kPeerLost,
                 "'y' cannot complete: rank 2 (far) has left: done");
    world.Submit(rank, "later");
    ExpectFailed(&world, rank, "later", StatusCode::kPeerLost, "rank 2 (far)");
  }
}

TEST(negotiator_what_a_leaver_took_part_in_still_completes) {
  World world(2);
  world.Submit(0, "x");
  world.Submit(1, "x");
  // The leader carries the record out. The member has not seen it yet when it
  // hears that the leader has left after it.
  ASSERT_TRUE(world.at(1).Advance(0, world.now()).ok());
  for (auto& message : world.at(1).TakeMessages()) {
    auto envelope = Decode(*message.bytes);
    EXPECT_TRUE(world.at(0)
                    .HandleReport(1, std::get<Report>(envelope.value().message),
                                  world.now())
                    .ok());
  }
  ASSERT_TRUE(world.at(0).Advance(0, world.now()).ok());
  world.at(1).EndAt(world.at(0).log_seen(), PeerLost("rank 0 has left"));
  EXPECT_TRUE(world.Results(1, "x").empty());
  for (auto& message : world.at(0).TakeMessages()) {
    auto envelope = Decode(*message.bytes);
    EXPECT_TRUE(world.at(1)
                    .HandleLog(std::get<LogMessage>(envelope.value().message))
                    .ok());
  }
  ExpectDone(&world, 1, "x");
  world.Submit(1, "y");
  ExpectFailed(&world, 1, "y", StatusCode::kPeerLost, "rank 0 has left");
}

// The leader has left. Its last record comes later than this rank waits for it.
// By then the entries have failed. The other members still get this rank's
// part.
TEST(negotiator_a_late_record_is_carried_out_without_results) {
  World world(2);
  for (int rank : {0, 1}) world.Submit(rank, "x");
  ASSERT_TRUE(world.at(1).Advance(0, world.now()).ok());
  for (auto& message : world.at(1).TakeMessages()) {
    auto envelope = Decode(*message.bytes);
    EXPECT_TRUE(world.at(0)
                    .HandleReport(1, std::get<Report>(envelope.value().message),
                                  world.now())
                    .ok());
  }
  ASSERT_TRUE(world.at(0).Advance(0, world.now()).ok());
  const std::vector<OutgoingMessage> late = world.at(0).TakeMessages();
  ASSERT_EQ(late.size(), 1u);
  const Status left = PeerLost("rank 0 has left");
  world.at(1).EndAt(world.at(0).log_seen(), left);
  world.at(1).AnswerAll(left);
  ExpectFailed(&world, 1, "x", StatusCode::kPeerLost, "rank 0 has left");
  EXPECT_TRUE(world.at(1).idle());
  auto envelope = Decode(*late[0].bytes);
  const auto& log = std::get<LogMessage>(envelope.value().message);
  EXPECT_EQ(world.at(1).HandleLog(log).message(), "");
  ASSERT_EQ(world.Batches(1).size(), 1u);
  EXPECT_TRUE(world.Results(1, "x").empty());
}

// Or peers would wait for its part in a batch that it never started.
TEST(negotiator_who_has_failed_all_takes_part_in_no_later_record) {
  World world(2);
  world.Submit(0, "before");
  world.Submit(1, "before");
  world.Deliver();
  world.Submit(1, "x");
  world.Deliver();
  world.at(1).FailAll(PeerLost("rank 2 failed"));
  ExpectFailed(&world, 1, "x", StatusCode::kPeerLost, "rank 2 failed");
  world.Submit(0, "x");  // agreed, because the leader does not know
  world.Deliver();
  EXPECT_EQ(world.Batches(0).size(), 2u);
  EXPECT_EQ(world.Batches(1).size(), 1u);
  EXPECT_EQ(world.at(1).log_seen(), world.at(0).log_seen());
  EXPECT_EQ(world.at(1).log_taken(), world.at(0).log_taken() - 1);
}

TEST(negotiator_a_cancel_is_heard_after_a_member_has_ended) {
  World world(2);
  const uint64_t decided = world.Submit(0, "x");
  world.Submit(1, "x");
  world.Deliver();
  ExpectDone(&world, 0, "x");
  const uint64_t waiting = world.Submit(0, "y");
  world.Deliver();
  // The rest of the log is awaited.
  world.at(0).EndAt(world.at(0).log_seen() + 1, PeerLost("rank 1 has left"));
  EXPECT_TRUE(world.Results(0, "y").empty());
  EXPECT_TRUE(world.at(0).Cancel(waiting, kNan));
  ExpectFailed(&world, 0, "y", StatusCode::kCancelled, "NaN");
  // It is the executor's.
  EXPECT_FALSE(world.at(0).Cancel(decided, kNan));
}

TEST(negotiator_a_record_behind_the_end_is_skipped) {
  World world(2);
  world.Submit(1, "x");
  world.at(1).FailAll(PeerLost("rank 0 was given up"));
  world.Results(1, "x");
  AgreedTensor tensor;
  tensor.key.name = "x";
  EXPECT_EQ(world.at(1).HandleLog({1, {AgreedBatch{{tensor}}}}).message(), "");
  EXPECT_EQ(world.at(1).log_seen(), 1u);
  EXPECT_TRUE(world.Batches(1).empty());
}

}  // namespace
}  // namespace hvd
