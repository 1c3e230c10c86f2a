// SPDX-License-Identifier: Apache-2.0
// StagedTransport where memory is short: nothing waits for ever, and nothing is
// freed that the wire still uses.
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "harness.h"
#include "transport/collectives/staged_transport.h"

namespace hvd {
namespace {

// What the wire and its test both know.
struct WireState {
  bool has_memory = true;
  int sends_until_none = -1;  // then Send has no memory, but the data is posted
  int ranks_until_none = -1;  // then rank() has no memory
  std::vector<const void*> posted;
  int abandoned = 0;   // pieces of memory that were given to Abandon
  bool lends = false;  // the peer's blocks are read in place
};

class PoorPool final : public StagingPool {
 public:
  explicit PoorPool(WireState* state) : state_(state) {}
  StagingBuffer Take(size_t bytes, Urgency urgency) override {
    return state_->has_memory ? pool_.Take(bytes, urgency) : StagingBuffer();
  }
  void Give(StagingBuffer buffer) override { pool_.Give(std::move(buffer)); }

 private:
  WireState* const state_;
  HeapStagingPool pool_;
};

// A wire of two ranks, the other of which never answers.
class PoorWire final : public Wire {
 public:
  explicit PoorWire(WireState* state) : state_(state), pool_(state) {}
  int rank() const override {
    if (state_->ranks_until_none-- == 0) throw std::bad_alloc();
    return 0;
  }
  int size() const override { return 2; }
  StagingPool& staging() override { return pool_; }
  const HostMap& hosts() const override { return hosts_; }
  bool zero_copy(int) const override { return state_->lends; }
  MoveId Send(int, uint32_t, const void* data, size_t) override {
    state_->posted.push_back(data);
    if (state_->sends_until_none-- == 0) throw std::bad_alloc();
    return state_->posted.size();
  }
  MoveId Receive(int, uint32_t, void* data, size_t) override {
    state_->posted.push_back(data);
    return state_->posted.size();
  }
  bool Test(MoveId) override { return false; }
  Status status() const override { return Status::Ok(); }
  void Abandon(std::vector<StagingBuffer> memory) override {
    for (const StagingBuffer& buffer : memory) {
      state_->abandoned += buffer.data != nullptr;
    }
  }

 private:
  WireState* const state_;
  PoorPool pool_;
  const HostMap hosts_ = EachAlone(2);
};

// A batch of two numbers, by default an allreduce.
struct TwoNumbers {
  explicit TwoNumbers(Transport* transport, Batch batch = {}) {
    batch.segments.push_back({});
    batch.segments[0].in = in;
    batch.segments[0].out = out;
    batch.segments[0].count = 2;
    id = transport->Start(std::move(batch), [this](const Status& why) {
      status = why;
      ++dones;
    });
  }

  float in[2] = {1, 2};
  float out[2] = {};
  BatchId id = 0;
  Status status;
  int dones = 0;
};

bool RunsOutOfMemory(Transport* transport) {
  try {
    (void)transport->Progress();
    return false;
  } catch (const std::bad_alloc&) {
    return true;
  }
}

TEST(the_oldest_batch_does_not_wait_for_memory_that_nobody_has) {
  WireState state;
  StagedTransport transport(std::make_unique<PoorWire>(&state), {0, 1});
  TwoNumbers first(&transport);
  EXPECT_TRUE(!RunsOutOfMemory(&transport));
  // A younger one waits: the first has memory to give back.
  state.has_memory = false;
  TwoNumbers second(&transport);
  EXPECT_TRUE(!RunsOutOfMemory(&transport));
  transport.Cancel(first.id, Cancelled("test"));
  transport.Cancel(second.id, Cancelled("test"));

  WireState poor;
  poor.has_memory = false;
  StagedTransport alone(std::make_unique<PoorWire>(&poor), {0, 1});
  TwoNumbers third(&alone);
  EXPECT_TRUE(RunsOutOfMemory(&alone));
  EXPECT_EQ(third.dones, 0);
  alone.Cancel(third.id, Cancelled("test"));
  EXPECT_EQ(third.dones, 1);
  // Nobody waits for it any more.
  EXPECT_TRUE(!RunsOutOfMemory(&alone));
}

Batch BroadcastOfThePeer() {
  Batch batch;
  batch.verb = Verb::kBroadcast;
  batch.root = 1;
  return batch;
}

TEST(a_batch_that_borrows_waits_for_no_memory) {
  WireState state;
  state.lends = true;
  state.has_memory = false;
  {
    StagedTransport transport(std::make_unique<PoorWire>(&state), {0, 1});
    TwoNumbers first(&transport, BroadcastOfThePeer());
    TwoNumbers second(&transport, BroadcastOfThePeer());
    EXPECT_TRUE(!RunsOutOfMemory(&transport));
    EXPECT_EQ(state.posted.size(), 2u);
    EXPECT_EQ(transport.in_flight(), 2);
  }
  EXPECT_EQ(state.abandoned, 0);
}

// It has none to give back.
TEST(the_oldest_batch_does_not_wait_for_one_that_borrows) {
  WireState state;
  state.lends = true;
  state.has_memory = false;
  StagedTransport transport(std::make_unique<PoorWire>(&state), {0, 1});
  bool is_ready = false;
  Batch batch;
  batch.inputs_are_ready = [&] { return is_ready; };
  TwoNumbers oldest(&transport, std::move(batch));
  TwoNumbers borrower(&transport, BroadcastOfThePeer());
  EXPECT_TRUE(!RunsOutOfMemory(&transport));
  EXPECT_EQ(state.posted.size(), 1u);
  is_ready = true;
  EXPECT_TRUE(RunsOutOfMemory(&transport));
}

TEST(a_wire_keeps_the_memory_of_a_chunk_that_could_not_start) {
  WireState state;
  state.sends_until_none = 0;
  {
    StagedTransport transport(std::make_unique<PoorWire>(&state), {0, 1});
    TwoNumbers sum(&transport);
    EXPECT_TRUE(RunsOutOfMemory(&transport));
    const size_t posted = state.posted.size();
    EXPECT_TRUE(posted > 0);
    // The rank ends now, and serves its peers for a while.
    transport.Cancel(sum.id, PeerLost("this rank failed"));
    EXPECT_EQ(sum.dones, 1);
    EXPECT_EQ(transport.count_of(sum.id), 1);
    EXPECT_TRUE(!RunsOutOfMemory(&transport));
    EXPECT_EQ(state.posted.size(), posted);
    EXPECT_EQ(state.abandoned, 0);
  }
  EXPECT_EQ(state.abandoned, 1);
}

// Wherever it is that there is none for it.
TEST(a_batch_that_could_not_start_leaves_nothing_behind) {
  int starts = 0;
  for (int ranks = 0; starts == 0; ++ranks) {
    WireState state;
    state.ranks_until_none = ranks;
    StagedTransport transport(std::make_unique<PoorWire>(&state), {0, 1});
    try {
      TwoNumbers sum(&transport);
      ++starts;
    } catch (const std::bad_alloc&) {
      state.ranks_until_none = -1;
      EXPECT_EQ(transport.in_flight(), 0);
      EXPECT_TRUE(!RunsOutOfMemory(&transport));
    }
  }
}

TEST(a_batch_that_was_cancelled_neither_waits_for_inputs_nor_reads_them) {
  WireState state;
  StagedTransport transport(std::make_unique<PoorWire>(&state), {0, 1});
  Batch batch;
  batch.inputs_are_ready = [] { return false; };
  int looks = 0;
  batch.find_not_finite = [&looks](const std::vector<Segment>&) {
    ++looks;
    return -1;
  };
  TwoNumbers sum(&transport, std::move(batch));
  EXPECT_FALSE(transport.Progress());
  EXPECT_TRUE(state.posted.empty());
  transport.Cancel(sum.id, Cancelled("test"));
  // Its peers are told.
  EXPECT_TRUE(transport.Progress());
  EXPECT_FALSE(state.posted.empty());
  EXPECT_EQ(looks, 0);
}

}  // namespace
}  // namespace hvd
