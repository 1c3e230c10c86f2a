// SPDX-License-Identifier: Apache-2.0
// Negotiator and Leader: matching, fusion, failures and aborted steps, with
// the ranks of a set in one thread and messages carried by hand.
#include "core/negotiator.h"

#include <algorithm>
#include <map>
#include <random>

#include "harness.h"

namespace hvd {
namespace {

using Clock = Negotiator::Clock;

bool IsQuiet(const Leader::Watched& watched) {
  return watched.warnings.empty() && watched.stalls.empty() &&
         !watched.lost.has_value();
}

// A set whose wire is always free, unless `busy`.
class World {
 public:
  explicit World(int size, Options options = Options::Defaults())
      : batches_(size), results_(size) {
    std::vector<int> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
    for (int rank = 0; rank < size; ++rank) {
      negotiators_.push_back(std::make_unique<Negotiator>(
          0, rank, ranks, options,
          [this, rank](ReadyBatch ready) { Execute(rank, std::move(ready)); },
          [this, rank](const Tuning& tuning) {
            batches_[rank].push_back(
                {"pieces of " + std::to_string(tuning.piece_bytes)});
            return tuning.piece_bytes < 0 ? Internal("no such pieces")
                                          : Status::Ok();
          },
          [this] { return busy_; }));
    }
  }

  Negotiator& at(int rank) { return *negotiators_[rank]; }
  void set_busy(int batches) { busy_ = batches; }
  void Pass(std::chrono::seconds time) { now_ += time; }

  // Returns the ticket.
  uint64_t Submit(int rank, const std::string& name, int64_t step = 0,
                  Signature signature = Plain(), uint64_t instance = 0,
                  Status error = Status::Ok()) {
    Entry entry;
    entry.request = {{name, instance}, signature, step, std::move(error)};
    entry.ticket = ++tickets_;
    entry.done = [this, rank, name](const Status& status) {
      results_[rank][name].push_back(status);
    };
    at(rank).Submit(std::move(entry));
    return entry.ticket;
  }

  // One rank's news, to the leader and back; then everything.
  void Deliver() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t rank = 0; rank < negotiators_.size(); ++rank) {
        Result<bool> advanced = at(static_cast<int>(rank)).Advance(now_);
        EXPECT_TRUE(advanced.ok());
        moved |= advanced.ok() && advanced.value();
        for (auto& message : at(static_cast<int>(rank)).TakeMessages()) {
          auto envelope = Decode(message.bytes);
          EXPECT_TRUE(envelope.ok());
          bytes_sent_ += message.bytes.size();
          Message& content = envelope.value().message;
          Status status =
              rank == 0
                  ? at(message.rank).HandleLog(std::get<LogMessage>(content))
                  : at(0).HandleReport(static_cast<int>(rank),
                                       std::get<Report>(content), now_);
          EXPECT_EQ(status.message(), "");
          moved = true;
        }
      }
    }
  }

  // Everything a rank was told of a name, and its batches.
  std::vector<Status> Results(int rank, const std::string& name) {
    return std::exchange(results_[rank][name], {});
  }
  std::vector<std::vector<std::string>>& Batches(int rank) {
    return batches_[rank];
  }
  // The steps of what a rank has put on the wire under a name.
  std::vector<int64_t> Steps(int rank, const std::string& name) {
    return std::exchange(steps_[{rank, name}], {});
  }
  size_t bytes_sent() const { return bytes_sent_; }
  Clock::time_point now() const { return now_; }

  static Signature Plain() {
    Signature signature;
    signature.shapes = {{4}};
    return signature;
  }

 private:
  void Execute(int rank, ReadyBatch ready) {
    std::vector<std::string> names;
    for (Outstanding& tensor : ready.tensors) {
      const Request& request = tensor.entry.request;
      names.push_back(request.key.name);
      steps_[{rank, request.key.name}].push_back(request.step);
      if (!tensor.cancelled) tensor.entry.done(Status::Ok());
    }
    batches_[rank].push_back(names);
  }

  std::vector<std::unique_ptr<Negotiator>> negotiators_;
  std::vector<std::vector<std::vector<std::string>>> batches_;
  std::vector<std::map<std::string, std::vector<Status>>> results_;
  std::map<std::pair<int, std::string>, std::vector<int64_t>> steps_;
  uint64_t tickets_ = 0;
  int busy_ = 0;
  size_t bytes_sent_ = 0;
  Clock::time_point now_{};
};

// Told once, and well.
void ExpectDone(World* world, int rank, const std::string& name) {
  std::vector<Status> results = world->Results(rank, name);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].message(), "");
}

// Told once, of a failure that holds this text.
void ExpectFailed(World* world, int rank, const std::string& name,
                  StatusCode code, const std::string& text) {
  std::vector<Status> results = world->Results(rank, name);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].code(), code);
  EXPECT_NE(results[0].message().find(text), std::string::npos);
  if (results[0].message().find(text) == std::string::npos) {
    EXPECT_EQ(results[0].message(), text);
  }
}

TEST(negotiator_opposite_order_gives_one_order) {
  World world(3);
  for (int i = 0; i < 100; ++i) world.Submit(0, "t" + std::to_string(i));
  world.Deliver();
  for (int i = 99; i >= 0; --i) world.Submit(1, "t" + std::to_string(i));
  world.Deliver();
  EXPECT_TRUE(world.Batches(0).empty());
  for (int i = 0; i < 100; ++i) {
    world.Submit(2, "t" + std::to_string((i * 37) % 100));
  }
  world.Deliver();
  EXPECT_TRUE(world.Batches(0) == world.Batches(1));
  EXPECT_TRUE(world.Batches(0) == world.Batches(2));
  for (int i = 0; i < 100; ++i) ExpectDone(&world, 1, "t" + std::to_string(i));
}

TEST(negotiator_holds_tensors_back_while_the_wire_is_busy) {
  World world(2);
  world.set_busy(4);
  for (const char* name : {"a", "b", "c"}) {
    world.Submit(0, name);
    world.Submit(1, name);
    world.Deliver();
  }
  EXPECT_TRUE(world.Batches(1).empty());
  world.set_busy(3);
  world.Deliver();
  ASSERT_EQ(world.Batches(1).size(), 1u);
  EXPECT_EQ(world.Batches(1)[0].size(), 3u);
}

TEST(negotiator_steady_state_is_one_small_exchange_a_batch) {
  World world(2);
  auto step = [&](int64_t number) {
    for (int rank = 0; rank < 2; ++rank) {
      for (int i = 0; i < 161; ++i) {
        world.Submit(rank, "gradient/layer" + std::to_string(i), number + rank);
      }
    }
    const size_t before = world.bytes_sent();
    world.Deliver();
    return world.bytes_sent() - before;
  };
  const size_t first = step(1000), second = step(2000), third = step(3000);
  EXPECT_TRUE(second * 4 < first);
  EXPECT_EQ(second, third);
  // A number there, and a few bytes back.
  EXPECT_TRUE(second < 161 * 7);
  EXPECT_EQ(world.Batches(1).size(), 3u);
}

TEST(negotiator_a_disagreement_fails_the_tensor_everywhere_once) {
  World world(2);
  Signature other = World::Plain();
  other.shapes = {{5}};
  for (int round = 0; round < 3; ++round) {
    world.Submit(0, "x");
    world.Submit(1, "x", 0, other);
    world.Submit(0, "y");
    world.Submit(1, "y");
    world.Deliver();
    for (int rank = 0; rank < 2; ++rank) {
      ExpectFailed(&world, rank, "x", StatusCode::kFailedPrecondition,
                   "(rank 0: [4]; rank 1: [5])");
      ExpectDone(&world, rank, "y");
    }
  }
  world.Submit(0, "x");
  world.Submit(1, "x");
  world.Deliver();
  ExpectDone(&world, 0, "x");
  ExpectDone(&world, 1, "x");
}

TEST(negotiator_a_cached_tensor_may_change_its_shape_or_gathered_rows) {
  World world(2);
  for (int64_t rows : {4, 4, 6, 6, 4}) {
    for (int rank = 0; rank < 2; ++rank) {
      Signature reduce = World::Plain();
      reduce.shapes = {{rows}};
      Signature gather;
      gather.verb = Verb::kAllgather;
      gather.shapes = {{rows + rank, 2}};
      world.Submit(rank, "r", 0, reduce);
      world.Submit(rank, "g", 0, gather);
    }
    world.Deliver();
    for (int rank = 0; rank < 2; ++rank) {
      ExpectDone(&world, rank, "r");
      ExpectDone(&world, rank, "g");
    }
  }
}

TEST(negotiator_a_full_cache_evicts_and_goes_on) {
  Options options = Options::Defaults();
  options.cache_entries = 3;
  World world(3, options);
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const std::string name = "t" + std::to_string(random() % 8);
    std::vector<int> order = {0, 1, 2};
    std::shuffle(order.begin(), order.end(), random);
    // The log reaches ranks at different times: some submit under a number
    // that is being evicted.
    for (int rank : order) {
      world.Submit(rank, name);
      if (random() % 2 == 0) world.Deliver();
    }
    world.Deliver();
    for (int rank = 0; rank < 3; ++rank) ExpectDone(&world, rank, name);
  }
}

TEST(negotiator_works_without_a_cache) {
  Options options = Options::Defaults();
  options.cache_entries = 0;
  World world(2, options);
  for (int round = 0; round < 3; ++round) {
    world.Submit(0, "x");
    world.Submit(1, "x");
    world.Deliver();
    ExpectDone(&world, 1, "x");
  }
}

TEST(negotiator_iterations_of_a_loop_are_told_apart) {
  World world(2);
  for (uint64_t i = 0; i < 10; ++i) {
    world.Submit(0, "loop", 0, World::Plain(), i);
    world.Submit(1, "loop", 0, World::Plain(), 9 - i);
  }
  world.Deliver();
  EXPECT_EQ(world.Results(0, "loop").size(), 10u);
  EXPECT_TRUE(world.at(0).idle());
  EXPECT_TRUE(world.at(1).idle());
}

TEST(negotiator_a_name_in_flight_twice_is_refused) {
  World world(2);
  world.Submit(0, "x");
  world.Submit(0, "x");
  ExpectFailed(&world, 0, "x", StatusCode::kInvalidArgument,
               "already in flight");
  world.Submit(1, "x");
  world.Deliver();
  ExpectDone(&world, 0, "x");
}

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

const Status kNan = Cancelled("NaN in 'loss'");

TEST(negotiator_an_aborted_step_fails_peers_that_wait_for_it) {
  World world(2);
  uint64_t ticket = world.Submit(1, "x", 21);
  world.Submit(0, "x2", 11);
  world.Submit(0, "y", 11);
  world.Deliver();
  world.at(1).Cancel(ticket, kNan);
  ExpectFailed(&world, 1, "x", StatusCode::kCancelled, "NaN");
  world.Deliver();
  // Rank 0 has not asked for x yet: only when it does, it is told, and then
  // so is all else of its step.
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
  world.set_busy(4);  // x is agreed, and still to be carried out
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
  world.set_busy(4);  // "x" is agreed in step 1, and still to be carried out
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
  // Of the other scope one rank has not gone.
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
  // The leader carries the record out; the member has not seen it yet when it
  // hears that the leader has left after it.
  ASSERT_TRUE(world.at(1).Advance(world.now()).ok());
  for (auto& message : world.at(1).TakeMessages()) {
    auto envelope = Decode(message.bytes);
    EXPECT_TRUE(world.at(0)
                    .HandleReport(1, std::get<Report>(envelope.value().message),
                                  world.now())
                    .ok());
  }
  ASSERT_TRUE(world.at(0).Advance(world.now()).ok());
  world.at(1).EndAt(world.at(0).log_seen(), PeerLost("rank 0 has left"));
  EXPECT_TRUE(world.Results(1, "x").empty());
  for (auto& message : world.at(0).TakeMessages()) {
    auto envelope = Decode(message.bytes);
    EXPECT_TRUE(world.at(1)
                    .HandleLog(std::get<LogMessage>(envelope.value().message))
                    .ok());
  }
  ExpectDone(&world, 1, "x");
  world.Submit(1, "y");
  ExpectFailed(&world, 1, "y", StatusCode::kPeerLost, "rank 0 has left");
}

TEST(negotiator_silence_with_unmatched_names_is_reported_once) {
  World world(2);
  world.Submit(0, "loss/a", 1);
  world.Submit(0, "metric", 1);
  world.Submit(1, "loss_1/a", 1);
  world.Deliver();
  world.Pass(std::chrono::seconds(4));
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

TEST(negotiator_single_eager_calls_that_can_never_match_fail) {
  World world(2);
  world.Submit(0, "a");
  world.Submit(1, "b");
  world.Deliver();
  world.Pass(std::chrono::seconds(6));
  EXPECT_TRUE(IsQuiet(world.at(0).Watch(world.now())));
  world.Deliver();
  ExpectFailed(&world, 0, "a", StatusCode::kFailedPrecondition, "rank 1: 'b'");
  ExpectFailed(&world, 1, "b", StatusCode::kFailedPrecondition, "rank 0: 'a'");
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

TEST(negotiator_changes_values_in_the_order_of_the_log) {
  World world(3);
  Autotuner::Config config;
  config.start = {64, 1 << 15, 4};
  config.most_piece_bytes = 1 << 17;
  config.rounds_per_sample = 1;
  config.most_samples = 10;
  std::vector<Autotuner::Sample> samples;
  world.at(0).Autotune(std::make_unique<Autotuner>(
      config,
      [&](const Autotuner::Sample& sample) { samples.push_back(sample); }));
  for (int step = 0; step < 200; ++step) {
    // The wire takes a second, whatever the values are.
    world.set_busy(4);
    for (int rank = 2; rank >= 0; --rank) {
      for (const char* name : {"a", "b", "c", "d", "e"}) {
        world.Submit(rank, name, step);
      }
    }
    world.Deliver();
    world.Pass(std::chrono::seconds(1));
    world.set_busy(0);
    world.Deliver();
  }
  ASSERT_FALSE(samples.empty());
  EXPECT_TRUE(samples.back().kind == Autotuner::Kind::kFinal);
  EXPECT_NEAR(samples[0].mb_per_s, 5 * 16 / 1e6, 1e-9);
  EXPECT_TRUE(world.Batches(0) == world.Batches(1));
  EXPECT_TRUE(world.Batches(0) == world.Batches(2));
  // What is measured last holds for the rest: 4 tensors of 16 bytes fit in 64.
  const auto& batches = world.Batches(0);
  EXPECT_TRUE(samples.back().tuning == config.start);
  EXPECT_EQ(batches[batches.size() - 2].size(), 4u);
  EXPECT_EQ(batches.back().size(), 1u);
  // And more of them did under other values.
  const std::vector<std::string> all = {"a", "b", "c", "d", "e"};
  EXPECT_NE(std::count(batches.begin(), batches.end(), all), 0);
  const std::vector<std::string> changed = {"pieces of 131072"};
  EXPECT_NE(std::count(batches.begin(), batches.end(), changed), 0);
}

TEST(negotiator_a_number_and_another_signature_disagree_in_any_order) {
  Signature other = World::Plain();
  other.shapes = {{5}};
  for (int odd : {0, 1, 2}) {  // asks for something else than before
    for (int first : {0, 1, 2}) {
      World world(3);
      for (int rank : {0, 1, 2}) world.Submit(rank, "x");
      world.Deliver();
      for (int rank : {0, 1, 2}) ExpectDone(&world, rank, "x");
      for (int i = 0; i < 3; ++i) {
        const int rank = (first + i) % 3;
        world.Submit(rank, "x", 0, rank == odd ? other : World::Plain());
        world.Deliver();
      }
      for (int rank : {0, 1, 2}) {
        ExpectFailed(&world, rank, "x", StatusCode::kFailedPrecondition,
                     "rank " + std::to_string(odd) + ": [5]");
      }
      // All ask for the other now, and then under its number.
      for (int round = 0; round < 2; ++round) {
        for (int rank : {2, 1, 0}) world.Submit(rank, "x", 0, other);
        world.Deliver();
        for (int rank : {0, 1, 2}) ExpectDone(&world, rank, "x");
      }
    }
  }
}

TEST(negotiator_a_cached_tensor_is_still_told_apart_in_all_ways) {
  World world(2);
  Signature gather;
  gather.verb = Verb::kAllgather;
  gather.shapes = {{1, 2}};
  for (int64_t step = 1; step <= 3; ++step) {
    for (int rank : {0, 1}) {
      world.Submit(rank, "x", 10 * rank + step);
      world.Submit(rank, "loop", 10 * rank + step, World::Plain(), 0);
      world.Submit(rank, "loop", 10 * rank + step, World::Plain(), 1);
      world.Submit(rank, "g", 10 * rank + step, gather);
      world.Submit(rank, "other step", 500 + step);
    }
    world.Deliver();
    for (int rank : {0, 1}) {
      EXPECT_EQ(world.Results(rank, "loop").size(), 2u);
      for (const char* name : {"x", "g", "other step"}) {
        ExpectDone(&world, rank, name);
      }
    }
  }
  // An error of its own travels though the tensor has a number.
  world.Submit(0, "x", 4);
  world.Submit(1, "x", 14, World::Plain(), 0, InvalidArgument("no"));
  world.Deliver();
  ExpectFailed(&world, 0, "x", StatusCode::kInvalidArgument, "on rank 1: no");
  world.Results(1, "x");
  // One aborted before the peer asks, and asked for again in the next step.
  const uint64_t ticket = world.Submit(1, "x", 15);
  EXPECT_TRUE(world.at(1).Cancel(ticket, kNan));
  EXPECT_FALSE(world.at(1).Cancel(ticket, kNan));
  world.Submit(1, "x", 16);
  world.Deliver();
  world.Submit(0, "x", 5);
  world.Deliver();
  ExpectFailed(&world, 0, "x", StatusCode::kPeerLost, "rank 1 aborted");
  world.Submit(0, "x", 6);
  world.Deliver();
  ExpectDone(&world, 0, "x");
  EXPECT_EQ(world.Results(1, "x").size(), 2u);
  EXPECT_TRUE(world.at(0).idle());
  EXPECT_TRUE(world.at(1).idle());
}

TEST(negotiator_nonsense_from_a_peer_is_an_error) {
  World world(2);
  Submission cached;
  cached.cache_id = 99;
  EXPECT_FALSE(world.at(0).HandleReport(1, {0, {cached}}, world.now()).ok());
  EXPECT_FALSE(world.at(0).HandleReport(1, {5, {}}, world.now()).ok());
  Submission root;
  root.key.name = "x";
  root.signature = World::Plain();
  root.signature.root = 2;
  EXPECT_FALSE(world.at(0).HandleReport(1, {0, {root}}, world.now()).ok());
  EXPECT_FALSE(world.at(1).HandleReport(0, {0, {}}, world.now()).ok());
  Signature gather;
  gather.verb = Verb::kAllgather;
  gather.shapes = {{1, 2}};
  for (int rank : {0, 1}) world.Submit(rank, "g", 0, gather);
  world.Deliver();
  const uint64_t seen = world.at(1).log_seen();
  CachedSubmissions many{0, {99}};
  EXPECT_FALSE(world.at(0).HandleReport(1, {seen, {many}}, world.now()).ok());
  many.ids = {0};
  EXPECT_FALSE(world.at(0).HandleReport(1, {seen, {many}}, world.now()).ok());
  // Number 1 is g's, which has a first dimension.
  many.ids = {1};
  EXPECT_FALSE(world.at(0).HandleReport(1, {seen, {many}}, world.now()).ok());
  cached.cache_id = 1;
  EXPECT_FALSE(world.at(0).HandleReport(1, {seen, {cached}}, world.now()).ok());
  EXPECT_TRUE(world.at(0).HandleReport(1, {seen, {}}, world.now()).ok());
  EXPECT_FALSE(world.at(1).HandleLog({seen + 2, {}}).ok());
  AgreedTensor unknown;
  unknown.key.name = "never submitted";
  EXPECT_FALSE(
      world.at(1).HandleLog({seen + 1, {AgreedBatch{{unknown}}}}).ok());
  EXPECT_FALSE(world.at(1).HandleLog({seen + 2, {Tuning{1, -1, 1}}}).ok());
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
