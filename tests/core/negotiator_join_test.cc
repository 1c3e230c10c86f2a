// SPDX-License-Identifier: Apache-2.0
// Joins in the control plane, message by message.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "harness.h"
#include "negotiator_world.h"

namespace hvd {
namespace {

using Names = std::vector<std::vector<std::string>>;

// A rank's joins, and the ranks that came last.
class Joins {
 public:
  explicit Joins(World* world) : world_(world) {}

  uint64_t Join(int rank) {
    auto call = std::make_shared<JoinCall>();
    call->ticket = 1000 + ++tickets_;
    call->done = [this](const Status& status, int last_rank) {
      told_.push_back({status, last_rank});
    };
    world_->at(rank).Join(call);
    return call->ticket;
  }
  // The last ranks that were told. -1 for a join that failed.
  std::vector<int> Told() {
    std::vector<int> last;
    for (const auto& [status, last_rank] : std::exchange(told_, {})) {
      last.push_back(last_rank);
    }
    return last;
  }

 private:
  World* const world_;
  uint64_t tickets_ = 0;
  std::vector<std::pair<Status, int>> told_;
};

TEST(negotiator_agrees_without_ranks_that_have_joined) {
  World world(3);
  Joins joins(&world);
  joins.Join(1);
  world.Deliver();
  for (int rank : {0, 2}) world.Submit(rank, "x");
  world.Deliver();
  ExpectDone(&world, 0, "x");
  ExpectDone(&world, 2, "x");
  // The joined rank takes part, without having asked for it.
  EXPECT_TRUE((world.Batches(1) == Names{{"x"}}));
  joins.Join(0);
  world.Deliver();
  EXPECT_TRUE(joins.Told().empty());
  joins.Join(2);
  world.Deliver();
  EXPECT_EQ(joins.Told(), (std::vector<int>{2, 2, 2}));
  // All are back.
  for (int rank : {0, 2}) world.Submit(rank, "y");
  world.Deliver();
  EXPECT_TRUE(world.Results(0, "y").empty());
  world.Submit(1, "y");
  world.Deliver();
  ExpectDone(&world, 0, "y");
}

// A rank whose call was refused joins before its peer has made the call.
TEST(negotiator_a_refused_call_is_not_agreed_without_its_rank) {
  const Status refused = InvalidArgument("a negative split");
  for (const bool is_known : {true, false}) {
    World world(2);
    Joins joins(&world);
    if (is_known) {
      // So the leader knows that these two steps are one.
      for (int rank : {0, 1}) world.Submit(rank, "early", 5 + rank);
      world.Deliver();
      ExpectDone(&world, 0, "early");
    }
    world.Submit(1, "wrong", 6, World::Plain(), 0, refused);
    world.Deliver();
    joins.Join(1);
    world.Deliver();
    if (is_known) {
      world.Submit(0, "other", 5);
      world.Deliver();
      ExpectFailed(&world, 0, "other", StatusCode::kPeerLost, "negative split");
    }
    world.Submit(0, "wrong", 5);
    world.Deliver();
    ExpectFailed(&world, 0, "wrong", StatusCode::kPeerLost,
                 "rank 1 aborted its step: a negative split");
    // The next step goes on without it.
    world.Submit(0, "next", 7);
    world.Deliver();
    ExpectDone(&world, 0, "next");
    joins.Join(0);
    world.Deliver();
    EXPECT_EQ(joins.Told(), (std::vector<int>{0, 0}));
  }
}

// The same where the peer waits already, with an eager call.
TEST(negotiator_a_refused_eager_call_is_not_agreed_without_its_rank) {
  World world(3);
  Joins joins(&world);
  world.Submit(0, "wrong");
  world.Submit(1, "wrong", 0, World::Plain(), 0, InvalidArgument("no rows"));
  world.Deliver();
  joins.Join(1);
  world.Deliver();
  ExpectFailed(&world, 0, "wrong", StatusCode::kPeerLost, "no rows");
  world.Submit(2, "wrong");
  world.Deliver();
  ExpectFailed(&world, 2, "wrong", StatusCode::kPeerLost, "no rows");
}

TEST(negotiator_tensors_of_different_absent_ranks_do_not_fuse) {
  World world(3);
  Joins joins(&world);
  world.set_busy(100);
  for (int rank : {0, 1, 2}) world.Submit(rank, "all");
  world.Deliver();
  joins.Join(1);
  world.Deliver();
  for (int rank : {0, 2}) world.Submit(rank, "some");
  world.Deliver();
  world.set_busy(0);
  world.Deliver();
  EXPECT_TRUE((world.Batches(1) == Names{{"all"}, {"some"}}));
  EXPECT_TRUE((world.Batches(0) == Names{{"all"}, {"some"}}));
}

TEST(negotiator_a_join_that_is_taken_back_in_time_counts_for_nothing) {
  World world(2);
  Joins joins(&world);
  const uint64_t first = joins.Join(1);
  world.Deliver();
  EXPECT_TRUE(world.at(1).Cancel(first, Cancelled("enough")));
  EXPECT_EQ(joins.Told(), std::vector<int>{-1});
  world.Deliver();
  joins.Join(0);
  world.Deliver();
  EXPECT_TRUE(joins.Told().empty());
  joins.Join(1);
  world.Deliver();
  EXPECT_EQ(joins.Told(), (std::vector<int>{1, 1}));
}

// The answer to the first join must not be taken for that of the second.
TEST(negotiator_a_join_that_is_taken_back_too_late_is_answered_by_the_log) {
  World world(2);
  Joins joins(&world);
  const uint64_t first = joins.Join(1);
  joins.Join(0);
  // Rank 1's join reaches the leader, which agrees; rank 1 does not hear yet.
  EXPECT_TRUE(world.at(1).Advance(0, world.now()).ok());
  for (const OutgoingMessage& message : world.at(1).TakeMessages()) {
    auto envelope = Decode(*message.bytes);
    ASSERT_TRUE(envelope.ok());
    EXPECT_TRUE(world.at(0)
                    .HandleReport(1, std::get<Report>(envelope.value().message),
                                  world.now())
                    .ok());
  }
  EXPECT_TRUE(world.at(1).Cancel(first, Cancelled("enough")));
  EXPECT_EQ(joins.Told(), std::vector<int>{-1});
  joins.Join(1);
  world.Deliver();
  // Rank 0's alone: rank 1's second join waits for another one of rank 0's.
  EXPECT_EQ(joins.Told(), std::vector<int>{0});
  joins.Join(0);
  world.Deliver();
  EXPECT_EQ(joins.Told(), (std::vector<int>{0, 0}));
}

TEST(negotiator_aborted_steps_do_not_wait_for_joined_ranks) {
  World world(3);
  Joins joins(&world);
  joins.Join(2);
  world.Deliver();
  const uint64_t ticket = world.Submit(0, "x", 5);
  world.Deliver();
  EXPECT_TRUE(world.at(0).Cancel(ticket, kNan));
  ExpectFailed(&world, 0, "x", StatusCode::kCancelled, "NaN");
  world.Deliver();
  world.Submit(1, "x", 7);
  world.Deliver();
  ExpectFailed(&world, 1, "x", StatusCode::kPeerLost, "rank 0 aborted");
  for (int rank : {0, 1}) joins.Join(rank);
  world.Deliver();
  EXPECT_EQ(joins.Told(), (std::vector<int>{1, 1, 1}));
  // The abort is over. Rank 2 does not run into it.
  for (int rank : {0, 1, 2}) world.Submit(rank, "x", 9);
  world.Deliver();
  for (int rank : {0, 1, 2}) ExpectDone(&world, rank, "x");
}

// The leader keeps what a rank that is behind may still refer to. A joined rank
// has nothing to say for as long as it waits.
void CheckJoinedRanksTellHowFarTheyAre(World* world, int size) {
  Joins joins(world);
  for (int rank = 2; rank < size; ++rank) joins.Join(rank);
  world->Deliver();
  size_t most = 0;
  for (int64_t i = 0; i < 3000; ++i) {
    Signature signature = World::Plain();
    signature.shapes[0][0] = 4 + i % 2;
    for (int rank : {0, 1}) world->Submit(rank, "x", i, signature);
    world->Deliver();
    ExpectDone(world, 0, "x");
    most = std::max(most, world->at(0).retired_count());
  }
  EXPECT_TRUE(most > 1000 && most < 1100);
}

TEST(negotiator_a_joined_rank_tells_how_far_it_is) {
  World world(3);
  CheckJoinedRanksTellHowFarTheyAre(&world, 3);
}

TEST(negotiator_a_joined_host_tells_how_far_it_is) {
  World world(4, Options::Defaults(), {0, 0, 1, 1});
  CheckJoinedRanksTellHowFarTheyAre(&world, 4);
}

TEST(negotiator_a_joined_rank_is_no_stall) {
  World world(3);
  Joins joins(&world);
  joins.Join(1);
  world.Submit(0, "x");
  world.Deliver();
  world.Pass(std::chrono::seconds(600));
  const Leader::Watched watched = world.at(0).Watch(world.now());
  ASSERT_EQ(watched.stalls.size(), 1u);
  EXPECT_EQ(watched.stalls[0].missing, std::vector<int>{2});
  EXPECT_TRUE(watched.warnings.empty());
}

TEST(negotiator_refuses_records_without_ranks_that_make_no_sense) {
  for (const std::vector<int>& absent :
       {std::vector<int>{2}, {1, 0}, {0, 0}, {0, 1}, {-1}}) {
    World world(2);
    AgreedTensor tensor;
    tensor.key.name = "x";
    AgreedBatch batch;
    batch.tensors = {tensor};
    batch.absent = absent;
    EXPECT_EQ(world.at(1).HandleLog({1, {batch}}).code(),
              StatusCode::kInternal);
  }
  // Shapes of a peer, which nothing is allocated for.
  for (const Shape& shape :
       {Shape{-1}, Shape{int64_t{1} << 40, int64_t{1} << 40}}) {
    World world(2);
    AgreedTensor tensor;
    tensor.key.name = "x";
    tensor.signature = World::Plain();
    tensor.signature->shapes = {shape};
    AgreedBatch batch;
    batch.tensors = {tensor};
    batch.absent = {1};
    EXPECT_EQ(world.at(1).HandleLog({1, {batch}}).code(),
              StatusCode::kInternal);
  }
}

}  // namespace
}  // namespace hvd
