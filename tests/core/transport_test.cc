// SPDX-License-Identifier: Apache-2.0
// Transports over mailboxes: the contract, and faults that only threads can
// have.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "cpu/non_temporal_copy.h"
#include "faults.h"
#include "harness.h"
#include "run_ranks.h"
#include "thread_world.h"
#include "transport/collectives/batch_check.h"
#include "transport/collectives/staged_transport.h"
#include "transport_contract.h"

namespace hvd {
namespace {

void RunContract(const std::vector<ContractCase>& cases, int size,
                 int64_t chunk_bytes) {
  for (const ContractCase& one : cases) {
    const int before = test::failures;
    ThreadWorld world(size, {}, chunk_bytes);
    RunRanks(size, [&](int rank) {
      auto backend = world.Open(rank);
      ContractRank self(backend.get(), 0, chunk_bytes);
      one.run(&self);
    });
    if (test::failures != before) {
      std::printf("  in %s with %d ranks, chunks of %lld bytes\n", one.name,
                  size, static_cast<long long>(chunk_bytes));
    }
  }
}

TEST(contract_with_3_ranks) { RunContract(ContractCases(), 3, 1024); }
// Ranks share nothing but the mailboxes, which are the tests' own. So
// sanitizers see enough with one number of ranks.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST(contract_with_1_rank) { RunContract(ContractCases(), 1, 1024); }
TEST(contract_with_2_ranks) { RunContract(ContractCases(), 2, 1024); }
TEST(contract_with_4_ranks) { RunContract(ContractCases(), 4, 4096); }
TEST(contract_with_large_chunks) {
  RunContract(ContractCases(), 2, kDefaultChunkBytes / 8);
}
// Too many for all to send to all: with few elements most ranks own no part.
TEST(contract_with_9_ranks) { RunContract(ContractCases(), 9, 1024); }
#endif

// They are more than there are tags.
TEST(long_batches_hold_up_no_other) {
  ThreadWorld world(3, {}, 1024);
  RunRanks(3, [&](int rank) {
    auto backend = world.Open(rank);
    ContractRank self(backend.get(), 0, 1024);
    auto transport = self.NewTransport();
    for (int round = 0; round < 2; ++round) {
      CheckSetIsWell(transport.get());
      bool has_come = rank != 1;
      Batch batch;
      batch.is_long = true;
      Call late({static_cast<float>(rank)}, 1), next({10.0f * rank}, 1);
      batch.inputs_are_ready = [&] { return has_come; };
      late.Start(transport.get(), batch);
      // The rank that is late could begin it before that.
      batch.inputs_are_ready = [&] { return rank == 1 || late.done(); };
      next.Start(transport.get(), batch);
      for (int i = 0; i < 600; ++i) CheckSetIsWell(transport.get());
      EXPECT_FALSE(late.done());
      EXPECT_EQ(transport->count_of(late.id()), 1);
      // All have looked.
      CheckSetIsWell(transport.get());
      has_come = true;
      Drive(transport.get(), [&] { return transport->in_flight() == 0; });
      EXPECT_TRUE(late.done() && late.out()[0] == 3.0f);
      EXPECT_TRUE(next.done() && next.out()[0] == 30.0f);
    }
  });
}

TEST(wire_failure_fails_everything) {
  ThreadWorld world(2, {}, 1024);
  std::atomic<int> left{1};
  RunRanks(2, [&](int rank) {
    auto faults = std::make_shared<Faults>();
    auto backend = world.Open(rank, faults);
    ContractRank self(backend.get(), 0, 1024);
    auto transport = self.NewTransport();
    CheckSetIsWell(transport.get());
    if (rank == 1) {
      while (left > 0) std::this_thread::yield();
      return;
    }
    faults->FailMove(9);
    Call one(std::vector<float>(9000), 9000), other({1.0f}, 1);
    one.Start(transport.get(), {});
    other.Start(transport.get(), {});
    Drive(transport.get(), [&] { return one.done() && other.done(); });
    EXPECT_EQ(one.status().message(), "this move was made to fail.");
    EXPECT_EQ(other.status().code(), StatusCode::kInternal);
    EXPECT_EQ(transport->in_flight(), 0);
    Call later({1.0f}, 1);
    later.Start(transport.get(), {});
    Drive(transport.get(), [&] { return later.done(); });
    EXPECT_EQ(later.status().message(), "this move was made to fail.");
    left = 0;
  });
}

// The tag of a batch's first chunk, by its number on the transport.
uint32_t TagOf(uint32_t batch) { return batch % 256 << 6; }

// Two float32 as the first chunk of a batch.
std::string BlockOf(uint32_t batch, uint16_t origin = 0) {
  const BlockHeader header{batch, 0, 8, origin, 0, 0xb7};
  std::string block(sizeof(header) + 8, '\0');
  std::memcpy(block.data(), &header, sizeof(header));
  return block;
}

// The first batch's status when rank 1 sends `bytes` as its block.
Status StatusAfter(const std::string& bytes) {
  ThreadWorld world(2);
  auto backend = world.Open(0);
  ContractRank self(backend.get(), 0, kDefaultChunkBytes);
  auto transport = self.NewTransport();
  auto peer = world.NewWire(1, 0, {0, 1});
  Call call({1.0f, 2.0f}, 2);
  call.Start(transport.get(), {});
  peer->Send(0, TagOf(1), bytes.data(), bytes.size());
  Drive(transport.get(), [&] { return call.done(); });
  return call.status();
}

TEST(bytes_that_make_no_sense_are_an_error) {
  EXPECT_EQ(StatusAfter(BlockOf(1)).message(), "");
  const std::string garbage(24, '\x5a');
  const std::string cases[] = {
      garbage,
      garbage.substr(0, 7),
      "",
      std::string(1000, 'x'),  // longer than anything that may come
      BlockOf(7),              // of another batch
      BlockOf(1, 2)};          // of a rank that there is not
  for (const std::string& bytes : cases) {
    EXPECT_EQ(StatusAfter(bytes).code(), StatusCode::kInternal);
  }
}

TEST(tags_are_used_again_when_their_batch_is_finished) {
  ThreadWorld world(2);
  auto backend = world.Open(0);
  ContractRank self(backend.get(), 0, kDefaultChunkBytes);
  auto transport = self.NewTransport();
  auto peer = world.NewWire(1, 0, {0, 1});
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 300; ++i) {
    calls.push_back(std::make_unique<Call>(std::vector<float>(2), 2));
    calls.back()->Start(transport.get(), {});
  }
  char first[64], second[64];
  const MoveId one = peer->Receive(0, TagOf(1), first, sizeof(first));
  const MoveId two = peer->Receive(0, TagOf(257), second, sizeof(second));
  for (int i = 0; i < 10; ++i) transport->Progress();
  EXPECT_TRUE(peer->Test(one));
  EXPECT_FALSE(peer->Test(two));
  peer->Send(0, TagOf(1), BlockOf(1).data(), BlockOf(1).size());
  for (int i = 0; i < 10; ++i) transport->Progress();
  EXPECT_TRUE(calls[0]->done());
  EXPECT_TRUE(peer->Test(two));
}

TEST(slow_rank_is_waited_for) {
  ThreadWorld world(3, {}, 1024);
  RunRanks(3, [&](int rank) {
    auto faults = std::make_shared<Faults>();
    if (rank == 2) faults->Delay(std::chrono::milliseconds(2));
    auto backend = world.Open(rank, faults);
    ContractRank self(backend.get(), 0, 1024);
    auto transport = self.NewTransport();
    CheckSetIsWell(transport.get(), 5000);
  });
}

TEST(frozen_rank_goes_on_when_thawed) {
  ThreadWorld world(2, {}, 1024);
  std::vector<std::shared_ptr<Faults>> faults = {std::make_shared<Faults>(),
                                                 std::make_shared<Faults>()};
  std::atomic<bool> frozen{false};
  RunRanks(2, [&](int rank) {
    auto backend = world.Open(rank, faults[rank]);
    ContractRank self(backend.get(), 0, 1024);
    auto transport = self.NewTransport();
    CheckSetIsWell(transport.get());
    Call call(std::vector<float>(5000, 1.0f), 5000);
    if (rank == 1) {
      faults[1]->Freeze();
      frozen = true;
      call.Start(transport.get(), {});
    } else {
      call.Start(transport.get(), {});
      while (!frozen) std::this_thread::yield();
      for (int i = 0; i < 1000; ++i) transport->Progress();
      EXPECT_FALSE(call.done());
      faults[1]->Thaw();
    }
    Drive(transport.get(), [&] { return call.done(); });
    EXPECT_EQ(call.status().message(), "");
  });
}

// Looks at what leaves its rank.
class WatchedWire final : public FaultyWire {
 public:
  explicit WatchedWire(std::unique_ptr<Wire> wire)
      : FaultyWire(std::move(wire), std::make_shared<Faults>()) {}

  MoveId Send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    ++sends;
    const auto payload =
        reinterpret_cast<uintptr_t>(data) + sizeof(BlockHeader);
    aligned_sends += payload % 64 == 0;
    return FaultyWire::Send(peer, tag, data, bytes);
  }

  int sends = 0, aligned_sends = 0;
};

void CheckWhatLeaves(ThreadWorld* world, int rank) {
  auto owned = std::make_unique<WatchedWire>(world->NewWire(rank, 0, {0, 1}));
  const WatchedWire& wire = *owned;
  StagedTransport transport(std::move(owned), {0, 1}, HeapChunks(1000));
  for (const Verb verb : {Verb::kAllreduce, Verb::kBroadcast}) {
    const int before = wire.sends;
    Batch batch;
    batch.verb = verb;
    Call call(std::vector<float>(1001, rank + 1.0f), 1001);
    call.Start(&transport, std::move(batch));
    // The leader starts a batch before it has told the peers of it.
    EXPECT_EQ(wire.sends, before);
    Drive(&transport, [&] { return call.done() && !transport.in_flight(); });
    const float expected = verb == Verb::kAllreduce ? 3.0f : 1.0f;
    EXPECT_TRUE(call.out() == std::vector<float>(1001, expected));
  }
  EXPECT_TRUE(wire.sends > 0);
  EXPECT_EQ(wire.aligned_sends, wire.sends);
}

TEST(chunks_leave_in_progress_and_begin_at_cache_lines) {
  ThreadWorld world(2);
  RunRanks(2, [&](int rank) { CheckWhatLeaves(&world, rank); });
}

TEST(staging_memory_is_used_again) {
  HeapStagingPool pool(1 << 20);
  const Urgency urgency = Urgency::kOldest;
  StagingBuffer buffer = pool.Take(100000, urgency);
  EXPECT_TRUE(buffer.bytes >= 100000);
  const std::byte* const data = buffer.data.get();
  pool.Give(std::move(buffer));
  buffer = pool.Take(70000, urgency);
  EXPECT_EQ(buffer.data.get(), data);
  EXPECT_EQ(pool.kept_bytes(), 0);
  pool.Give(std::move(buffer));
  // It is left to chunks that need so much.
  StagingBuffer small = pool.Take(1000, urgency);
  EXPECT_TRUE(small.data.get() != data);
  pool.Give(std::move(small));
  if (!test::kIsSanitized) {
    // Nothing is kept that may be what lacks.
    EXPECT_TRUE(pool.Take(size_t{1} << 50, urgency).data == nullptr);
    buffer = pool.Take(100000, urgency);
    EXPECT_EQ(pool.kept_bytes(), 0);
    pool.Give(std::move(buffer));
  }
  // What is kept is bounded, whatever was in use at a time.
  std::vector<StagingBuffer> many;
  for (int i = 0; i < 40; ++i) many.push_back(pool.Take(100000, urgency));
  for (StagingBuffer& one : many) pool.Give(std::move(one));
  EXPECT_TRUE(pool.kept_bytes() <= 1 << 20);
  // Those that can wait do not go beyond the limit, together with what is in
  // use.
  EXPECT_TRUE(pool.Take(2 << 20, Urgency::kCanWait).data == nullptr);
  EXPECT_TRUE(pool.Take(2 << 20, Urgency::kSmall).data != nullptr);
  HeapStagingPool other(1 << 20);
  StagingBuffer half = other.Take(1 << 19, Urgency::kCanWait);
  EXPECT_TRUE(other.Take(1 << 20, Urgency::kCanWait).data == nullptr);
  other.Give(std::move(half));
  EXPECT_TRUE(other.Take(1 << 20, Urgency::kCanWait).data != nullptr);
}

TEST(partners_that_make_no_sense_are_refused) {
  Batch batch;
  const auto check = [&](std::vector<int> partners) {
    batch.partners = std::move(partners);
    return CheckBatch(batch, 1, 4).code();
  };
  EXPECT_EQ(check({1, 3}), StatusCode::kOk);
  for (const std::vector<int>& partners :
       {std::vector<int>{-1, 1}, {1, 4}, {0, 2}, {3, 1}, {1, 1}}) {
    EXPECT_EQ(check(partners), StatusCode::kInternal);
  }
  batch.reduce_op = ReduceOp::kAdasum;
  EXPECT_EQ(check({1, 3}), StatusCode::kInternal);
}

TEST(a_non_temporal_copy_is_a_copy_and_no_more) {
  std::vector<char> in(1000), out(1100), expected;
  std::iota(in.begin(), in.end(), '\0');
  for (size_t from : {0, 1, 16, 63}) {
    for (size_t to : {0, 1, 8, 63, 64}) {
      for (size_t bytes : {0, 1, 63, 64, 65, 127, 128, 500, 900}) {
        std::fill(out.begin(), out.end(), 'x');
        expected = out;
        std::memcpy(expected.data() + to, in.data() + from, bytes);
        NonTemporalCopy(out.data() + to, in.data() + from, bytes);
        EXPECT_TRUE(out == expected);
      }
    }
  }
}

}  // namespace
}  // namespace hvd
