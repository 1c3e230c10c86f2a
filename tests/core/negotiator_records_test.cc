// SPDX-License-Identifier: Apache-2.0
// Negotiator and Leader: what an aborted step costs at many ranks, and who
// hears of which records.
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "core/control/failure_queue.h"
#include "core/control/log_sender.h"
#include "core/control/message.h"
#include "core/control/negotiator.h"
#include "harness.h"
#include "negotiator_world.h"

namespace hvd {
namespace {

constexpr int kTensors = 161;

std::string Name(int tensor) { return "gradient/" + std::to_string(tensor); }

void SubmitAll(World* world, int rank, int64_t step) {
  for (int i = 0; i < kTensors; ++i) world->Submit(rank, Name(i), step);
}

// One rank aborts a step in which all but rank 0 wait. Every tensor fails on
// every rank. The leader keeps few bytes for that in memory.
TEST(negotiator_an_aborted_step_of_many_ranks_costs_the_leader_little) {
  constexpr int kRanks = 256;
  World world(kRanks);
  const uint64_t ticket = world.Submit(kRanks - 1, Name(0), 1);
  for (int rank = 1; rank < kRanks; ++rank) {
    for (int i = rank == kRanks - 1 ? 1 : 0; i < kTensors; ++i) {
      world.Submit(rank, Name(i), 1);
    }
  }
  world.Deliver();
  const size_t before = world.distinct_bytes_sent();
  EXPECT_TRUE(world.at(kRanks - 1).Cancel(ticket, kNan));
  world.Deliver();
  // A text, and a name and a range of ranks for each tensor.
  EXPECT_TRUE(world.distinct_bytes_sent() - before < 10000);
  EXPECT_EQ(world.messages_in_last_delivery(0), kRanks - 1);
  for (int rank = 1; rank < kRanks; ++rank) {
    for (int i = 0; i < kTensors; ++i) {
      if (rank == kRanks - 1 && i == 0) continue;
      ExpectFailed(&world, rank, Name(i), StatusCode::kPeerLost,
                   "rank 255 aborted its step: NaN");
    }
  }
  // The slow rank comes into the aborted step. Then all go on.
  SubmitAll(&world, 0, 1);
  world.Deliver();
  ExpectFailed(&world, 0, Name(160), StatusCode::kPeerLost, "rank 255");
  ExpectFailed(&world, kRanks - 1, Name(0), StatusCode::kCancelled, "NaN");
  for (int rank = 0; rank < kRanks; ++rank) world.Submit(rank, Name(0), 2);
  world.Results(0, Name(0));
  world.Deliver();
  for (int rank : {0, 7, kRanks - 1}) ExpectDone(&world, rank, Name(0));
}

TEST(negotiator_a_failure_is_told_to_whom_it_concerns) {
  constexpr int kRanks = 8;
  World world(kRanks);
  world.at(7).Cancel(world.Submit(7, "x", 1), kNan);
  world.Deliver();
  for (int rank = 0; rank < 6; ++rank) {
    world.Submit(rank, "x", 1);
    world.Deliver();
    // The leader has no need of a message.
    EXPECT_EQ(world.messages_in_last_delivery(0), rank == 0 ? 0 : 1);
  }
  // The others hear how long the log has become with the next batch.
  EXPECT_EQ(world.at(6).log_seen(), 0u);
  for (int rank = 0; rank < kRanks; ++rank) world.Submit(rank, "y", 2);
  world.Deliver();
  for (int rank = 0; rank < kRanks; ++rank) {
    ExpectDone(&world, rank, "y");
    EXPECT_EQ(world.at(rank).log_seen(), world.at(0).log_seen());
  }
}

// Rank 2 has left. Its last record is a failure that concerns only the leader
// and rank 2. Rank 1 does not wait for it, because it would only skip it.
TEST(negotiator_a_leaver_is_not_waited_for_because_of_skipped_records) {
  World world(3);
  world.at(0).Cancel(world.Submit(0, "x", 1), kNan);
  world.Deliver();
  world.Submit(2, "x", 1);
  world.Submit(1, "y", 1);
  world.Deliver();
  EXPECT_TRUE(world.at(1).log_seen() < world.at(2).log_seen());
  const uint64_t last = world.at(2).log_seen();
  for (int rank : {0, 1}) {
    world.at(rank).EndAt(last, PeerLost("rank 2 has left"));
  }
  world.Deliver();
  ExpectFailed(&world, 1, "y", StatusCode::kPeerLost, "rank 2 has left");
}

TEST(failure_queue_joins_ranks_and_keeps_the_order_of_a_key) {
  FailureQueue queue;
  const SharedStatus why = Share(PeerLost("NaN"));
  const auto never = [](const Key&, uint64_t) { return false; };
  for (int rank : {3, 1, 2, 0, 7}) queue.Add({"x", 0}, rank, 0, why, 5);
  queue.Add({"x", 0}, 3, 1, why, 5);
  queue.Add({"x", 0}, 3, 0, why, 5);
  const auto failure = queue.Take(never);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->status.message(), "NaN");
  ASSERT_EQ(failure->keys.size(), 3u);
  ASSERT_EQ(failure->keys[0].ranks.size(), 2u);
  EXPECT_EQ(failure->keys[0].ranks[0].first, 0);
  EXPECT_EQ(failure->keys[0].ranks[0].last, 3);
  EXPECT_EQ(failure->keys[0].ranks[1].first, 7);
  EXPECT_EQ(failure->keys[1].older, 1);
  EXPECT_EQ(failure->keys[2].older, 0);
  EXPECT_TRUE(queue.empty());
  EXPECT_FALSE(queue.Take(never).has_value());
}

TEST(failure_queue_holds_back_what_was_agreed_before) {
  FailureQueue queue;
  queue.Add({"x", 0}, 1, 0, Share(PeerLost("first")), 5);
  queue.Add({"y", 0}, 1, 0, Share(PeerLost("second")), 6);
  queue.Add({"x", 0}, 2, 0, Share(PeerLost("third")), 7);
  uint64_t x_agreed = 5;
  const auto held_back = [&](const Key& key, uint64_t agreements) {
    return key.name == "x" && x_agreed <= agreements;
  };
  EXPECT_EQ(queue.Take(held_back)->status.message(), "second");
  EXPECT_FALSE(queue.Take(held_back).has_value());
  x_agreed = 8;
  EXPECT_EQ(queue.Take(held_back)->status.message(), "first");
  EXPECT_EQ(queue.Take(held_back)->status.message(), "third");
  EXPECT_TRUE(queue.empty());
}

TEST(log_sender_members_that_are_told_the_same_share_its_bytes) {
  LogSender sender(0, 5, HostTree({}, 0, 5).receivers());
  std::vector<OutgoingMessage> outgoing;
  const Failure failure{PeerLost("NaN"), {{0, {"x", 0}, 0, {{1, 3}}}}};
  sender.Send({failure, Eviction{{7}}}, &outgoing);
  ASSERT_EQ(outgoing.size(), 4u);
  std::set<const std::string*> bytes;
  for (const OutgoingMessage& message : outgoing) {
    bytes.insert(message.bytes.get());
  }
  EXPECT_EQ(bytes.size(), 2u);
  // Rank 4 skips the failure.
  auto envelope = Decode(*outgoing[3].bytes);
  ASSERT_TRUE(envelope.ok());
  const auto& log = std::get<LogMessage>(envelope.value().message);
  EXPECT_EQ(log.first_number, 1u);
  ASSERT_EQ(log.records.size(), 2u);
  EXPECT_EQ(std::get<Skipped>(log.records[0]).count, 1u);
  EXPECT_EQ(std::get<Eviction>(log.records[1]).numbers[0], 7u);
}

}  // namespace
}  // namespace hvd
