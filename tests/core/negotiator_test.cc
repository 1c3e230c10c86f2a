// SPDX-License-Identifier: Apache-2.0
// Negotiator and Leader: matching, fusion and cached signatures.
#include "core/control/negotiator.h"

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "harness.h"
#include "negotiator_world.h"

namespace hvd {
namespace {

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

// One iteration gives the name a new number in the batch in which another still
// has the shape of the old one.
TEST(negotiator_iterations_of_one_batch_may_differ_in_shape) {
  Signature three = World::Plain(), five = World::Plain();
  three.shapes = {{3}};
  five.shapes = {{5}};
  for (const bool new_one_first : {true, false}) {
    World world(2);
    for (int rank : {0, 1}) world.Submit(rank, "loop", 1, three, 1);
    world.Deliver();
    world.set_busy(4);  // so that what follows travels together
    for (int rank : {0, 1}) {
      world.Submit(rank, "loop", 1, new_one_first ? five : three, 2);
      world.Submit(rank, "loop", 1, new_one_first ? three : five, 3);
      world.Submit(rank, "loop", 1, new_one_first ? five : three, 4);
    }
    world.Deliver();
    world.set_busy(0);
    world.Deliver();
    for (int rank : {0, 1}) {
      const std::vector<Status> results = world.Results(rank, "loop");
      EXPECT_EQ(results.size(), 4u);
      for (const Status& status : results) EXPECT_EQ(status.message(), "");
    }
  }
}

TEST(negotiator_a_name_in_flight_twice_is_refused) {
  World world(2);
  world.Submit(0, "x");
  world.Submit(0, "x");
  ExpectFailed(&world, 0, "x", StatusCode::kInvalidArgument,
               "'x' is already in flight on this rank; give tensors that are "
               "in flight together different name= arguments, and let the map "
               "of a tf.data pipeline run one call at a time");
  world.Submit(1, "x");
  world.Deliver();
  ExpectDone(&world, 0, "x");
}

TEST(negotiator_changes_values_in_the_order_of_the_log) {
  World world(3);
  const std::vector<std::string> names = {"a", "b", "c", "d", "e"};
  int64_t number = 0;
  const auto step = [&] {
    ++number;
    world.set_busy(4);
    for (int rank = 2; rank >= 0; --rank) {
      for (const std::string& name : names) world.Submit(rank, name, number);
    }
    world.Deliver();
    world.set_busy(0);
    world.Deliver();
  };
  step();
  world.at(0).Tune({64, 1 << 15, 4});
  step();
  world.at(0).Tune({1 << 20, 1 << 17, 4});
  step();
  // 4 tensors of 16 bytes fit in 64.
  const std::vector<std::vector<std::string>> expected = {
      names, {"chunks of 32768"},  {"a", "b", "c", "d"},
      {"e"}, {"chunks of 131072"}, names};
  for (int rank : {0, 1, 2}) EXPECT_TRUE(world.Batches(rank) == expected);
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
  cached.signature_number = 99;
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
  many.numbers = {0};
  EXPECT_FALSE(world.at(0).HandleReport(1, {seen, {many}}, world.now()).ok());
  // Number 1 is g's, which has a first dimension.
  many.numbers = {1};
  EXPECT_FALSE(world.at(0).HandleReport(1, {seen, {many}}, world.now()).ok());
  many.first_dims = {3, 3};  // of two tensors
  EXPECT_FALSE(world.at(0).HandleReport(1, {seen, {many}}, world.now()).ok());
  many.first_dims = {-1};
  EXPECT_FALSE(world.at(0).HandleReport(1, {seen, {many}}, world.now()).ok());
  cached.signature_number = 1;
  EXPECT_FALSE(world.at(0).HandleReport(1, {seen, {cached}}, world.now()).ok());
  EXPECT_TRUE(world.at(0).HandleReport(1, {seen, {}}, world.now()).ok());
  EXPECT_FALSE(world.at(1).HandleLog({seen + 2, {}}).ok());
  AgreedTensor unknown;
  unknown.key.name = "never submitted";
  EXPECT_FALSE(
      world.at(1).HandleLog({seen + 1, {AgreedBatch{{unknown}}}}).ok());
  EXPECT_FALSE(world.at(1).HandleLog({seen + 2, {Tuning{1, -1, 1}}}).ok());
}

// Records that parse and that no leader of this build writes.
TEST(negotiator_a_batch_that_makes_no_sense_is_an_error_and_fails_its_tensors) {
  Signature gather = World::Plain();
  gather.verb = Verb::kAllgather;
  gather.shapes = {{3, 2}};
  const auto tensor = [](const std::string& name,
                         std::vector<std::vector<int64_t>> first_dims) {
    AgreedTensor agreed;
    agreed.key.name = name;
    agreed.first_dims = std::move(first_dims);
    return agreed;
  };
  const int64_t most = std::numeric_limits<int64_t>::max();
  const std::vector<AgreedBatch> batches = {
      {{}},                                         // no tensor
      {{tensor("g", {})}},                          // no first dimensions
      {{tensor("g", {{1, 3}, {1, 3}})}},            // of two tensors
      {{tensor("g", {{3}})}},                       // of one rank
      {{tensor("g", {{-1, 3}})}},                   // negative
      {{tensor("g", {{1, 4}})}},                    // not this rank's own
      {{tensor("g", {{most, 3}})}},                 // too many rows
      {{tensor("x", {{1, 3}})}},                    // of an allreduce
      {{tensor("x", {}), tensor("g", {{1, 3}})}}};  // two verbs
  for (size_t i = 0; i < batches.size(); ++i) {
    World world(2);
    world.Submit(1, "g", 0, gather);
    world.Submit(1, "x");
    const Status status = world.at(1).HandleLog({1, {batches[i]}});
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_TRUE(world.Batches(1).empty());
    // What the batch had is answered, and the rest is when the rank breaks.
    world.at(1).FailAll(status);
    for (const char* name : {"g", "x"}) {
      ExpectFailed(&world, 1, name, StatusCode::kInternal, "the log agrees on");
    }
  }
}

// Batches and values are to be executed in the order of the log. What is ready
// counts as in flight.
TEST(negotiator_queues_what_is_ready_and_counts_it_as_in_flight) {
  Options options = Options::Defaults();
  options.batches_in_flight = 2;
  options.fusion_bytes = 16;
  World world(1, options);
  for (const char* name : {"a", "b", "c"}) world.Submit(0, name);
  Negotiator& negotiator = world.at(0);
  ASSERT_TRUE(negotiator.Advance(0, world.now()).ok());
  std::vector<std::string> names;
  const auto take = [&] {
    const std::optional<ReadyItem> item = negotiator.TakeReady();
    if (!item.has_value()) return false;
    for (const Outstanding& tensor : std::get<ReadyBatch>(*item).tensors) {
      names.push_back(tensor.entry->request.key.name);
    }
    return true;
  };
  EXPECT_TRUE(take());
  // One is on the wire, and one is ready.
  ASSERT_TRUE(negotiator.Advance(1, world.now()).ok());
  EXPECT_TRUE(take());
  EXPECT_FALSE(take());
  ASSERT_TRUE(negotiator.Advance(1, world.now()).ok());
  EXPECT_TRUE(take());
  EXPECT_FALSE(take());
  EXPECT_TRUE((names == std::vector<std::string>{"a", "b", "c"}));
}

TEST(negotiator_queues_values_between_the_batches_of_the_log) {
  World world(2);
  for (const char* name : {"a", "b"}) world.Submit(1, name);
  const auto batch_of = [](const char* name) {
    AgreedTensor tensor;
    tensor.key.name = name;
    return AgreedBatch{{tensor}};
  };
  Negotiator& negotiator = world.at(1);
  ASSERT_TRUE(
      negotiator.HandleLog({1, {batch_of("a"), Tuning{1, 2, 3}, batch_of("b")}})
          .ok());
  const auto first = negotiator.TakeReady();
  const auto second = negotiator.TakeReady();
  const auto third = negotiator.TakeReady();
  ASSERT_TRUE(first.has_value() && second.has_value() && third.has_value());
  EXPECT_EQ(std::get<ReadyBatch>(*first).log_number, 1u);
  EXPECT_EQ(std::get<Tuning>(*second).chunk_bytes, 2);
  EXPECT_EQ(std::get<ReadyBatch>(*third).log_number, 3u);
  EXPECT_FALSE(negotiator.TakeReady().has_value());
}

}  // namespace
}  // namespace hvd
