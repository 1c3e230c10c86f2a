// SPDX-License-Identifier: Apache-2.0
// Shared memory: rings, doorbell, arena, messages.
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "harness.h"
#include "run_ranks.h"
#include "thread_world.h"
#include "transport/collectives/staged_transport.h"
#include "transport/shm/shm_arena.h"
#include "transport/shm/shm_channel.h"
#include "transport/shm/shm_doorbell.h"
#include "transport/shm/shm_endpoint.h"
#include "transport/shm/shm_host.h"
#include "transport/shm/shm_ring.h"
#include "transport/shm/shm_segment.h"
#include "transport/shm/shm_wire.h"
#include "transport_contract.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::shared_ptr<ShmHost> NewHost(int ranks, size_t arena_bytes = 65536) {
  auto segment = ShmSegment::Create(ShmHost::BytesFor(ranks, arena_bytes));
  segment.value()->Unlink();
  return std::make_shared<ShmHost>(segment.value(), ranks, arena_bytes);
}

// --- Ring and doorbell ---

constexpr std::chrono::microseconds kSpin{60};

TEST(a_ring_gives_what_was_put_in) {
  auto host = NewHost(2);
  const std::string sent = [] {
    std::string bytes(300000, '\0');
    std::iota(bytes.begin(), bytes.end(), '\1');
    return bytes;
  }();
  std::string got;
  std::thread reader([&] {
    ShmRing ring = host->messages(0, 1);
    ShmDoorbell bell(host->doorbell(1), host->segment());
    std::mt19937 random(1);
    while (got.size() < sent.size()) {
      const size_t count = std::min<size_t>(ring.readable(), random() % 9000);
      std::string part(count, '\0');
      if (count > 0 && ring.Read(part.data(), count)) Ring(host->doorbell(0));
      got += part;
      if (ring.readable() == 0) bell.Wait(milliseconds(5000), kSpin);
    }
  });
  ShmRing ring = host->messages(0, 1);
  ShmDoorbell bell(host->doorbell(0), host->segment());
  std::mt19937 random(2);
  for (size_t at = 0; at < sent.size();) {
    size_t count = std::min<size_t>(sent.size() - at, random() % 9000);
    if (ring.writable() == 0 && ring.WaitForRoom(1)) {
      bell.Wait(milliseconds(5000), kSpin);
      continue;
    }
    count = std::min(count, ring.writable());
    ring.Write(sent.data() + at, count);
    at += count;
    Ring(host->doorbell(1));
  }
  reader.join();
  EXPECT_TRUE(got == sent);
}

TEST(a_doorbell_rung_before_is_not_waited_for) {
  auto host = NewHost(1);
  ShmDoorbell bell(host->doorbell(0), host->segment());
  bell.Ring();
  bell.Ring();
  const auto begin = steady_clock::now();
  bell.Wait(milliseconds(10000), kSpin);
  EXPECT_TRUE(steady_clock::now() - begin < milliseconds(5000));
  bell.Wait(milliseconds(20), kSpin);  // both rings were seen
  EXPECT_TRUE(steady_clock::now() - begin >= milliseconds(20));
}

// A ring that gets lost costs the whole limit.
TEST(no_ring_is_lost) {
  auto host = NewHost(2);
  constexpr int kRounds = 3000;
  constexpr milliseconds kLimit{60000};
  std::atomic<int> turn{0};
  RunRanks(2, [&](int rank) {
    ShmDoorbell bell(host->doorbell(rank), host->segment());
    for (int round = 0; round < kRounds; ++round) {
      while (turn < 2 * round + rank) {
        const auto begin = steady_clock::now();
        bell.Wait(kLimit, kSpin);
        EXPECT_TRUE(steady_clock::now() - begin < kLimit);
      }
      ++turn;
      Ring(host->doorbell(1 - rank));
    }
  });
  EXPECT_EQ(turn.load(), 2 * kRounds);
}

// --- Arena ---

TEST(an_arena_gives_each_buffer_its_own_bytes) {
  std::vector<std::byte> memory(64 * 1024);
  ShmArena arena(memory.data(), memory.size(), nullptr);
  std::mt19937 random(3);
  std::vector<std::pair<StagingBuffer, std::byte>> taken;
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0 && !taken.empty()) {
      const size_t which = random() % taken.size();
      auto& [buffer, mark] = taken[which];
      EXPECT_TRUE(buffer.data.get()[0] == mark &&
                  buffer.data.get()[buffer.bytes - 1] == mark);
      arena.Give(std::move(buffer));
      taken.erase(taken.begin() + static_cast<long>(which));
      continue;
    }
    StagingBuffer buffer = arena.Take(1 + random() % 6000, Urgency::kOldest);
    if (buffer.data == nullptr) continue;
    EXPECT_TRUE(buffer.data.get() >= memory.data() &&
                buffer.data.get() + buffer.bytes <=
                    memory.data() + memory.size());
    const std::byte mark{static_cast<unsigned char>(i)};
    std::fill_n(buffer.data.get(), buffer.bytes, mark);
    taken.emplace_back(std::move(buffer), mark);
  }
  for (auto& [buffer, mark] : taken) arena.Give(std::move(buffer));
  // It is free, and in one chunk again.
  EXPECT_TRUE(arena.Take(memory.size(), Urgency::kOldest).data != nullptr);
}

TEST(what_can_wait_leaves_a_quarter_of_the_arena) {
  std::vector<std::byte> memory(4096);
  ShmArena arena(memory.data(), memory.size(), nullptr);
  EXPECT_TRUE(arena.Take(3073, Urgency::kCanWait).data == nullptr);
  StagingBuffer large = arena.Take(3072, Urgency::kCanWait);
  EXPECT_TRUE(large.data != nullptr);
  EXPECT_TRUE(arena.Take(64, Urgency::kCanWait).data == nullptr);
  EXPECT_TRUE(arena.Take(1024, Urgency::kSmall).data != nullptr);
  EXPECT_TRUE(arena.Take(1, Urgency::kOldest).data == nullptr);
}

TEST(what_can_wait_leaves_a_quarter_of_what_is_not_reserved) {
  auto memory = std::make_shared<std::vector<std::byte>>(8192);
  ShmArena arena(memory->data(), 8192, memory);
  auto first = arena.Reserve(2048), second = arena.Reserve(4096);
  ASSERT_TRUE(first.has_value() && second.has_value());
  // These would come from the last 2048.
  EXPECT_TRUE(arena.Take(1537, Urgency::kCanWait).data == nullptr);
  StagingBuffer large = arena.Take(1536, Urgency::kCanWait);
  ASSERT_TRUE(large.data != nullptr);
  EXPECT_TRUE(arena.Take(64, Urgency::kCanWait).data == nullptr);
  arena.Give(std::move(large));
  // What a chunk gives back changes nothing, and what a set gives back is
  // shared.
  EXPECT_TRUE(arena.Take(1537, Urgency::kCanWait).data == nullptr);
  arena.Give(std::move(*second));
  EXPECT_TRUE(arena.Take(4609, Urgency::kCanWait).data == nullptr);
  EXPECT_TRUE(arena.Take(4608, Urgency::kCanWait).data != nullptr);
}

TEST(a_reserve_waits_for_chunks_and_keeps_new_ones_away) {
  auto memory = std::make_shared<std::vector<std::byte>>(4096);
  ShmArena arena(memory->data(), 4096, memory);
  const auto offset = [&](const StagingBuffer& buffer) {
    return buffer.data.get() - memory->data();
  };
  auto first = arena.Reserve(1000);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(offset(*first), 4096 - 1024);  // from the end
  StagingBuffer low = arena.Take(1024, Urgency::kOldest);
  StagingBuffer high = arena.Take(1024, Urgency::kOldest);
  EXPECT_EQ(offset(low), 0);
  // There is room between the reserves, but chunks use it.
  auto second = arena.Reserve(2048);
  ASSERT_TRUE(second.has_value());
  EXPECT_TRUE(second->data == nullptr);
  EXPECT_TRUE(arena.Take(64, Urgency::kOldest).data == nullptr);
  arena.Give(low);
  EXPECT_TRUE(arena.Take(64, Urgency::kOldest).data == nullptr);
  arena.StopWaiting();
  StagingBuffer small = arena.Take(64, Urgency::kOldest);
  EXPECT_TRUE(small.data != nullptr);
  arena.Give(small);
  EXPECT_TRUE(arena.Reserve(2048)->data == nullptr);
  arena.Give(high);
  second = arena.Reserve(2048);
  ASSERT_TRUE(second->data != nullptr);
  EXPECT_EQ(offset(*second), 1024);
  EXPECT_TRUE(arena.Take(1025, Urgency::kOldest).data == nullptr);
  low = arena.Take(1024, Urgency::kOldest);
  EXPECT_EQ(offset(low), 0);
  arena.Give(low);
  // No chunk that goes away makes room for this.
  EXPECT_FALSE(arena.Reserve(1025).has_value());
  EXPECT_TRUE(arena.Take(64, Urgency::kOldest).data != nullptr);
  arena.Give(*first);
  EXPECT_TRUE(arena.Reserve(1024)->data != nullptr);
}

// --- Messages ---

TEST(messages_of_any_length_arrive_in_order) {
  constexpr int kRanks = 3;
  auto host = NewHost(kRanks);
  const std::vector<size_t> lengths = {0, 1, 70000, 5, 1 << 20, 3, 65536, 17};
  RunRanks(kRanks, [&](int rank) {
    ShmChannel channel(host, std::make_shared<ShmEndpoint>(host, rank), rank);
    ShmDoorbell bell(host->doorbell(rank), host->segment());
    for (size_t length : lengths) {
      for (int peer = 0; peer < kRanks; ++peer) {
        if (peer == rank) continue;
        channel.Send(peer,
                     Share(std::string(length, static_cast<char>('a' + rank))));
      }
    }
    std::vector<size_t> count(kRanks);
    size_t left = (kRanks - 1) * lengths.size();
    bool flushing = true;
    while (left > 0 || flushing) {
      int peer = -1;
      std::string message;
      if (channel.Receive(&peer, &message)) {
        const char mark = static_cast<char>('a' + peer);
        EXPECT_TRUE(message == std::string(lengths[count[peer]++], mark));
        --left;
        continue;
      }
      flushing = channel.Flush();
      if (left > 0 || flushing) bell.Wait(milliseconds(5000), kSpin);
    }
    EXPECT_EQ(channel.status().message(), "");
  });
}

// A peer that says much must not keep the others from being heard.
TEST(messages_are_taken_from_each_peer_in_turn) {
  auto host = NewHost(3);
  std::vector<std::unique_ptr<ShmChannel>> channels;
  for (int rank = 0; rank < 3; ++rank) {
    channels.push_back(std::make_unique<ShmChannel>(
        host, std::make_shared<ShmEndpoint>(host, rank), rank));
  }
  for (int i = 0; i < 2; ++i) {
    for (const int rank : {1, 2}) channels[rank]->Send(0, Share("x"));
  }
  int peer = 0;
  std::string message;
  for (const int rank : {1, 2, 1, 2}) {
    ASSERT_TRUE(channels[0]->Receive(&peer, &message));
    EXPECT_EQ(peer, rank);
  }
}

// --- Bytes that make no sense ---

Status StatusAfterMove(const ShmMove& move) {
  auto host = NewHost(2);
  ShmEndpoint endpoint(host, 0);
  host->moves(1, 0).Write(&move, sizeof(move));
  endpoint.Poll();
  return endpoint.status();
}

TEST(moves_that_make_no_sense_are_an_error) {
  EXPECT_EQ(StatusAfterMove({1, 5, 0, 0, 65536}).message(), "");
  const ShmMove cases[] = {
      {0, 0, 0, 0, 0},       {3, 0, 0, 0, 0},
      {1, 5, 0, 0, 65537},   {1, 5, 0, ~uint64_t{0}, 2},
      {1, 5, 0, 1, 65536},   {1, 5, 0, 65537, 0},
      {2, 5, 0, 0, 0},  // nothing was sent
      {2, 5, 1 << 30, 0, 0},
  };
  for (const ShmMove& move : cases) {
    EXPECT_EQ(StatusAfterMove(move).code(), StatusCode::kInternal);
  }
}

TEST(a_move_is_done_when_its_receiver_says_so) {
  for (const int teller : {1, 2}) {
    auto host = NewHost(3);
    ShmEndpoint endpoint(host, 0);
    const StagingBuffer buffer = endpoint.arena().Take(64, Urgency::kOldest);
    const MoveId sent = endpoint.Send(1, 5, buffer.data.get(), 64);
    const ShmMove done{2, 5, sent, 0, 0};
    host->moves(teller, 0).Write(&done, sizeof(done));
    endpoint.Poll();
    EXPECT_EQ(endpoint.status().ok(), teller == 1);
    EXPECT_EQ(endpoint.Test(sent), teller == 1);
  }
}

// A rank that leaves serves its peers until nothing is held.
TEST(moves_that_find_no_room_are_flushed_and_rung_for) {
  auto host = NewHost(2);
  const auto endpoint = std::make_shared<ShmEndpoint>(host, 0);
  ShmChannel channel(host, endpoint, 0);
  ShmEndpoint peer(host, 1);
  const StagingBuffer buffer = endpoint->arena().Take(64, Urgency::kOldest);
  for (int i = 0; i < 10000 && !endpoint->is_holding(); ++i) {
    (void)endpoint->Send(1, 5, buffer.data.get(), 64);
  }
  EXPECT_TRUE(channel.Flush());
  const uint32_t rings = host->doorbell(0)->rings;
  peer.Poll();
  EXPECT_TRUE(host->doorbell(0)->rings != rings);
  EXPECT_FALSE(channel.Flush());
}

// Its moves have numbers that are used again.
TEST(a_slot_that_is_used_again_knows_no_moves_of_before) {
  auto host = NewHost(2);
  ShmEndpoint endpoint(host, 0), peer(host, 1);
  const uint32_t tag = 1u << kShmSlotShift | 5, other = 5;
  endpoint.Open(1);
  (void)endpoint.Receive(1, tag);
  endpoint.Close(1, nullptr);
  endpoint.Open(1);
  const StagingBuffer buffer = endpoint.arena().Take(64, Urgency::kOldest);
  const MoveId sent = endpoint.Send(1, other, buffer.data.get(), 64);
  const MoveId received = endpoint.Receive(1, tag);
  const StagingBuffer theirs = peer.arena().Take(64, Urgency::kOldest);
  (void)peer.Send(0, tag, theirs.data.get(), 64);
  endpoint.Poll();
  EXPECT_TRUE(endpoint.Test(received));
  EXPECT_FALSE(endpoint.Test(sent));
}

TEST(a_ring_that_makes_no_sense_is_an_error) {
  auto host = NewHost(2);
  auto* head = reinterpret_cast<ShmRingHead*>(
      host->segment()->data() + 4096);  // behind the doorbells: pair 0, 0
  head->written = uint64_t{1} << 40;
  ShmChannel channel(host, std::make_shared<ShmEndpoint>(host, 0), 0);
  int peer = 0;
  std::string message;
  EXPECT_FALSE(channel.Receive(&peer, &message));
  EXPECT_EQ(channel.status().code(), StatusCode::kInternal);
}

// The status of an allreduce of two float32 when rank 1 sends `bytes` of a
// block with that header.
Status StatusAfterBlock(size_t bytes,
                        const BlockHeader& header = {1, 0, 8, 0, 0, 0xb7}) {
  ThreadWorld world(2);
  const Options options = Options::Defaults();
  auto backend = world.OpenShared(0, options, 1);
  ContractRank self(backend.get(), 1, options.shm_chunk_bytes);
  auto transport = self.NewTransport();
  ShmEndpoint peer(world.host(), 1);
  const StagingBuffer buffer = peer.arena().Take(64, Urgency::kOldest);
  std::memcpy(buffer.data.get(), &header, sizeof(header));
  Call call({1.0f, 2.0f}, 2);
  call.Start(transport.get(), {});
  peer.Send(0, 1u << kShmSlotShift | 1u << 6, buffer.data.get(), bytes);
  Drive(transport.get(), [&] { return call.done(); });
  return call.status();
}

TEST(a_block_of_another_length_than_it_says_is_an_error) {
  EXPECT_EQ(StatusAfterBlock(24).message(), "");
  for (size_t bytes : {0, 15, 16, 23, 25, 1000}) {
    EXPECT_EQ(StatusAfterBlock(bytes).code(), StatusCode::kInternal);
  }
}

TEST(a_block_that_blames_a_tensor_that_there_is_not_is_an_error) {
  const auto code = static_cast<uint8_t>(StatusCode::kInvalidArgument);
  for (const uint32_t tensor : {1, 2}) {  // 1: the first one
    const Status status = StatusAfterBlock(16, {1, 0, tensor, 1, code, 0xb7});
    EXPECT_EQ(status.code(), tensor == 1 ? StatusCode::kInvalidArgument
                                         : StatusCode::kInternal);
  }
}

}  // namespace
}  // namespace hvd
