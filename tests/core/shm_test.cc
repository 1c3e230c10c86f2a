// SPDX-License-Identifier: Apache-2.0
// Shared memory: segment, rings, doorbell, arena, messages, and its set-up.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "harness.h"
#include "thread_backend.h"
#include "transport/collectives/staged_transport.h"
#include "transport/shm/shm_arena.h"
#include "transport/shm/shm_backend.h"
#include "transport/shm/shm_channel.h"
#include "transport/shm/shm_doorbell.h"
#include "transport/shm/shm_endpoint.h"
#include "transport/shm/shm_host.h"
#include "transport/shm/shm_ring.h"
#include "transport/shm/shm_segment.h"
#include "transport/shm/shm_wire.h"
#include "transport_contract.h"

namespace {
std::atomic<int> interruptions{0};
std::atomic<bool> was_open_to_signals{false};
}  // namespace

// In place of the C library's: it is interrupted so often.
extern "C" int posix_fallocate(int fd, off_t offset, off_t bytes) {
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  if (sigismember(&blocked, SIGALRM) == 0) was_open_to_signals = true;
  if (interruptions > 0) {
    --interruptions;
    return EINTR;
  }
  return fallocate(fd, 0, offset, bytes) == 0 ? 0 : errno;
}

namespace hvd {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Of a segment that has a name there.
std::string PathOf(const ShmSegment& segment) {
  const std::string& text = segment.name();
  const size_t begin = text.find('/');
  return "/dev/shm" + text.substr(begin, text.find(' ', begin) - begin);
}

bool Exists(const std::string& path) {
  struct stat facts;
  return stat(path.c_str(), &facts) == 0;
}

std::shared_ptr<ShmHost> NewHost(int ranks, size_t arena_bytes = 65536) {
  auto segment = ShmSegment::Create(ShmHost::BytesFor(ranks, arena_bytes));
  segment.value()->Unlink();
  return std::make_shared<ShmHost>(segment.value(), ranks, arena_bytes);
}

// --- Segment ---

TEST(ASegmentIsPrivateAndSharedByItsName) {
  auto mine = ShmSegment::CreateNamed(8192);
  ASSERT_TRUE(mine.ok());
  struct stat facts;
  ASSERT_TRUE(stat(PathOf(*mine.value()).c_str(), &facts) == 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  EXPECT_TRUE(facts.st_blocks * 512 >= 8192);  // its pages are there
  auto again = ShmSegment::Attach(mine.value()->name(), 8192);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(mine.value()->data() != again.value()->data());
  mine.value()->data()[8191] = std::byte{42};
  EXPECT_TRUE(again.value()->data()[8191] == std::byte{42});
  EXPECT_TRUE(again.value()->data()[0] == std::byte{0});
}

TEST(ASegmentIsGoneWithItsName) {
  auto mine = ShmSegment::CreateNamed(4096);
  ASSERT_TRUE(mine.ok());
  const std::string path = PathOf(*mine.value());
  auto again = ShmSegment::Attach(mine.value()->name(), 4096);
  again.value().reset();
  EXPECT_TRUE(Exists(path));  // is not theirs to take away
  mine.value()->Unlink();
  EXPECT_FALSE(Exists(path));
  EXPECT_FALSE(ShmSegment::Attach(mine.value()->name(), 4096).ok());
  auto other = ShmSegment::CreateNamed(4096);
  const std::string second = PathOf(*other.value());
  EXPECT_TRUE(second != path);
  other.value().reset();
  EXPECT_FALSE(Exists(second));
}

TEST(ASegmentWithoutANameIsSharedByItsPlaceAndLeavesNothing) {
  auto mine = ShmSegment::Create(8192);
  ASSERT_TRUE(mine.ok());
  const std::string name = mine.value()->name();
  int pid = 0, fd = -1;
  ASSERT_EQ(std::sscanf(name.c_str(), "place %d %d", &pid, &fd), 2);
  struct stat facts;
  ASSERT_TRUE(fstat(fd, &facts) == 0);
  EXPECT_EQ(facts.st_nlink, 0u);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  EXPECT_TRUE(facts.st_blocks * 512 >= 8192);
  auto again = ShmSegment::Attach(name, 8192);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(mine.value()->data() != again.value()->data());
  mine.value()->data()[8191] = std::byte{42};
  EXPECT_TRUE(again.value()->data()[8191] == std::byte{42});
  EXPECT_TRUE(again.value()->data()[0] == std::byte{0});
  again.value()->Unlink();
  EXPECT_TRUE(ShmSegment::Attach(name, 8192).ok());  // is not theirs to close
  mine.value()->Unlink();
  EXPECT_FALSE(ShmSegment::Attach(name, 8192).ok());
  again.value()->data()[0] = std::byte{7};
  EXPECT_TRUE(mine.value()->data()[0] == std::byte{7});
}

TEST(ASegmentOfAnotherSizeIsRefused) {
  auto mine = ShmSegment::Create(8192);
  EXPECT_EQ(ShmSegment::Attach(mine.value()->name(), 4096).status().code(),
            StatusCode::kInternal);
}

// Where ranks have process numbers of their own, a place may be a stranger's.
TEST(AStrangersFileIsRefused) {
  for (auto* create : {ShmSegment::Create, ShmSegment::CreateNamed}) {
    auto mine = create(8192);
    ASSERT_TRUE(mine.ok());
    std::string name = mine.value()->name();
    EXPECT_TRUE(ShmSegment::Attach(name, 8192).ok());
    char& last = name.back();
    last = last == '1' ? '2' : '1';  // all as it should be but the nonce
    EXPECT_EQ(ShmSegment::Attach(name, 8192).status().code(),
              StatusCode::kInternal);
  }
  for (const char* text : {"", "place", "place 1", "place x 3 4", "file /a"}) {
    EXPECT_EQ(ShmSegment::Attach(text, 8192).status().code(),
              StatusCode::kInternal);
  }
}

// Opened for writing, a pipe would have another writer, and no reader would see
// its end.
TEST(WhatIsNoFileIsNotEvenOpened) {
  const std::string path = "/tmp/hvd_tf-shm_test-" + std::to_string(getpid());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int reader = open(path.c_str(), O_RDONLY | O_NONBLOCK);
  unlink(path.c_str());
  const std::string place =
      "place " + std::to_string(getpid()) + " " + std::to_string(reader) + " 7";
  EXPECT_EQ(ShmSegment::Attach(place, 8192).status().code(),
            StatusCode::kInternal);
  pollfd events = {reader, POLLIN, 0};
  EXPECT_EQ(poll(&events, 1, 0), 0);  // it hangs up once a writer has gone
  close(reader);
}

// Not every kernel does that to a signal's receiver.
TEST(AnInterruptionDoesNotStopASegmentFromBeingFilled) {
  interruptions = 3;
  was_open_to_signals = false;
  EXPECT_EQ(ShmSegment::Create(8192).status().message(), "");
  EXPECT_EQ(interruptions.load(), 0);
  // A timer would interrupt it each time.
  EXPECT_FALSE(was_open_to_signals.load());
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  EXPECT_EQ(sigismember(&blocked, SIGALRM), 0);
}

TEST(ASegmentThatDoesNotFitIsAnErrorNow) {
  const Status status = ShmSegment::Create(size_t{1} << 50).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("/dev/shm"), std::string::npos);
}

// --- Ring and doorbell ---

TEST(ARingGivesWhatWasPutIn) {
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
      if (ring.readable() == 0) bell.Wait(milliseconds(5000));
    }
  });
  ShmRing ring = host->messages(0, 1);
  ShmDoorbell bell(host->doorbell(0), host->segment());
  std::mt19937 random(2);
  for (size_t at = 0; at < sent.size();) {
    size_t count = std::min<size_t>(sent.size() - at, random() % 9000);
    if (ring.writable() == 0 && ring.WaitForRoom(1)) {
      bell.Wait(milliseconds(5000));
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

TEST(ADoorbellRungBeforeIsNotWaitedFor) {
  auto host = NewHost(1);
  ShmDoorbell bell(host->doorbell(0), host->segment());
  bell.Ring();
  bell.Ring();
  const auto begin = steady_clock::now();
  bell.Wait(milliseconds(10000));
  EXPECT_TRUE(steady_clock::now() - begin < milliseconds(5000));
  bell.Wait(milliseconds(20));  // both rings were seen
  EXPECT_TRUE(steady_clock::now() - begin >= milliseconds(20));
}

// A ring that gets lost costs the whole limit.
TEST(NoRingIsLost) {
  auto host = NewHost(2);
  constexpr int kRounds = 3000;
  std::atomic<int> turn{0};
  const auto begin = steady_clock::now();
  RunRanks(2, [&](int rank) {
    ShmDoorbell bell(host->doorbell(rank), host->segment());
    for (int round = 0; round < kRounds; ++round) {
      while (turn < 2 * round + rank) bell.Wait(milliseconds(60000));
      ++turn;
      Ring(host->doorbell(1 - rank));
    }
  });
  EXPECT_EQ(turn.load(), 2 * kRounds);
  EXPECT_TRUE(steady_clock::now() - begin < milliseconds(60000));
}

// --- Arena ---

TEST(AnArenaGivesEachBufferItsOwnBytes) {
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
  EXPECT_EQ(arena.free_bytes(), memory.size());
  // It is in one chunk again.
  EXPECT_TRUE(arena.Take(memory.size(), Urgency::kOldest).data != nullptr);
}

TEST(WhatCanWaitLeavesAQuarterOfTheArena) {
  std::vector<std::byte> memory(4096);
  ShmArena arena(memory.data(), memory.size(), nullptr);
  EXPECT_TRUE(arena.Take(3073, Urgency::kCanWait).data == nullptr);
  StagingBuffer large = arena.Take(3072, Urgency::kCanWait);
  EXPECT_TRUE(large.data != nullptr);
  EXPECT_TRUE(arena.Take(64, Urgency::kCanWait).data == nullptr);
  EXPECT_TRUE(arena.Take(1024, Urgency::kSmall).data != nullptr);
  EXPECT_TRUE(arena.Take(1, Urgency::kOldest).data == nullptr);
}

// --- Messages ---

TEST(AReserveWaitsForChunksAndKeepsNewOnesAway) {
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
  EXPECT_EQ(arena.free_bytes(), 1024u);
  // No chunk that goes away makes room for this.
  EXPECT_FALSE(arena.Reserve(1025).has_value());
  EXPECT_TRUE(arena.Take(64, Urgency::kOldest).data != nullptr);
  arena.Give(*first);
  EXPECT_TRUE(arena.Reserve(1024)->data != nullptr);
}

TEST(MessagesOfAnyLengthArriveInOrder) {
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
      if (left > 0 || flushing) bell.Wait(milliseconds(5000));
    }
    EXPECT_EQ(channel.status().message(), "");
  });
}

// --- Bytes that make no sense ---

Status StatusAfterMove(const ShmMove& move) {
  auto host = NewHost(2);
  ShmEndpoint endpoint(host, 0);
  host->moves(1, 0).Write(&move, sizeof(move));
  endpoint.Poll();
  return endpoint.status();
}

TEST(MovesThatMakeNoSenseAreAnError) {
  EXPECT_EQ(StatusAfterMove({1, 5, 0, 0, 65536}).message(), "");
  const ShmMove cases[] = {
      {0, 0, 0, 0, 0},       {3, 0, 0, 0, 0},
      {1, 5, 0, 0, 65537},   {1, 5, 0, ~uint64_t{0}, 2},
      {1, 5, 0, 65537, 0},   {2, 5, 0, 0, 0},  // nothing was sent
      {2, 5, 1 << 30, 0, 0},
  };
  for (const ShmMove& move : cases) {
    EXPECT_EQ(StatusAfterMove(move).code(), StatusCode::kInternal);
  }
}

TEST(ARingThatMakesNoSenseIsAnError) {
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

// Of an allreduce of two float32 when rank 1 sends `bytes` of a block whose
// header promises them.
Status StatusAfterBlock(size_t bytes) {
  ThreadWorld world(2);
  const Options options = Options::Defaults();
  auto backend = world.OpenShared(0, options, 1);
  ContractRank self(backend.get(), 1, options.shm_chunk_bytes);
  auto transport = self.NewTransport();
  ShmEndpoint peer(world.host(), 1);
  const StagingBuffer buffer = peer.arena().Take(64, Urgency::kOldest);
  const BlockHeader header{1, 0, 8, 0, 0, 0xb7};
  std::memcpy(buffer.data.get(), &header, sizeof(header));
  Call call({1.0f, 2.0f}, 2);
  call.Start(transport.get(), {});
  peer.Send(0, 1u << kShmSetShift | 1u << 6, buffer.data.get(), bytes);
  Drive(transport.get(), [&] { return call.done(); });
  return call.status();
}

TEST(ABlockOfAnotherLengthThanItSaysIsAnError) {
  EXPECT_EQ(StatusAfterBlock(24).message(), "");
  for (size_t bytes : {0, 15, 16, 23, 25, 1000}) {
    EXPECT_EQ(StatusAfterBlock(bytes).code(), StatusCode::kInternal);
  }
}

// --- The set-up ---

// By name, as processes do it. What each rank got.
std::vector<Status> SetUp(int ranks,
                          const std::function<void(int, Options*)>& change) {
  ThreadWorld world(ranks);
  std::vector<Status> results(ranks);
  RunRanks(ranks, [&](int rank) {
    Options options = Options::Defaults();
    change(rank, &options);
    auto backend = AddSharedMemory(world.Open(rank), options, {});
    results[rank] = backend.status();
    if (!backend.ok()) return;
    ContractRank self(backend.value().get(), 0, options.shm_chunk_bytes);
    auto transport = self.NewTransport();
    CheckSetIsWell(transport.get(), 100000);
  });
  return results;
}

TEST(RanksFindTheirMemoryByName) {
  for (int ranks : {1, 2, 5}) {
    for (const Status& status : SetUp(ranks, [](int, Options*) {})) {
      EXPECT_EQ(status.message(), "");
    }
  }
}

// 1000 ranks on hosts of 8.
Topology LargeJob() {
  Topology topology;
  topology.size = 1000;
  topology.local_ranks.clear();
  for (int rank = 0; rank < 8; ++rank) topology.local_ranks.push_back(rank);
  topology.local_size = 8;
  topology.host_of.clear();
  for (int rank = 0; rank < topology.size; ++rank) {
    topology.host_of.push_back(rank / 8);
  }
  return topology;
}

std::vector<int> RanksFrom(int first, int count, int step = 1) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(first + i * step);
  return ranks;
}

TEST(ASetTakesMemoryOfItsMembersOnly) {
  const Topology topology = LargeJob();
  const Options options = Options::Defaults();
  const auto bytes = [&](const ProcessSets& sets) {
    return ShmArenaBytes(options, topology, sets);
  };
  const auto alone = bytes({});
  EXPECT_TRUE(alone < size_t{42} << 20);
  ProcessSets others;
  for (int host = 1; host < 125; ++host) {
    others.push_back(RanksFrom(8 * host, 8));
  }
  EXPECT_EQ(bytes(others), alone);
  // As many as its ranks have, and no more for what others of the host have.
  const auto with_one = bytes({RanksFrom(0, 4)});
  EXPECT_TRUE(with_one > alone && with_one < alone + (300 << 10));
  EXPECT_EQ(bytes({RanksFrom(0, 4), RanksFrom(4, 4)}), with_one);
  EXPECT_TRUE(bytes({RanksFrom(0, 4), RanksFrom(0, 8)}) > with_one);
  // A few ranks of two hosts do not need what all hosts would.
  EXPECT_TRUE(bytes({RanksFrom(0, 16)}) < alone + (3 << 20));
  // One of each host: they share no memory.
  EXPECT_EQ(bytes({RanksFrom(0, 125, 8)}), alone);
  // Refused later.
  EXPECT_EQ(bytes({{}, {-1}, {1000}}), alone);
}

TEST(SetsOfDifferentMembersHaveTheMemoryTheyNeed) {
  const ProcessSets sets = {{0, 1}, {2, 3}, {0}, {0, 1, 2, 3}, {1, 3}};
  for (const std::vector<std::string>& hosts :
       {std::vector<std::string>(4, "a"),
        std::vector<std::string>{"a", "a", "b", "b"}}) {
    ThreadWorld world(4, hosts);
    RunRanks(4, [&](int rank) {
      Options options = Options::Defaults();
      options.shm_bytes = 0;  // what sets reserve is all there is
      auto backend = AddSharedMemory(world.Open(rank), options, sets);
      ASSERT_TRUE(backend.ok());
      std::vector<std::unique_ptr<Transport>> mine;
      for (size_t i = 0; i < sets.size(); ++i) {
        const auto& ranks = sets[i];
        if (std::count(ranks.begin(), ranks.end(), rank) == 0) continue;
        auto transport =
            backend.value()->NewTransport(static_cast<int>(i) + 1, ranks);
        ASSERT_TRUE(transport.ok());
        mine.push_back(std::move(transport.value()));
      }
      auto all = backend.value()->NewTransport(0, {0, 1, 2, 3});
      ASSERT_TRUE(all.ok());
      for (auto& transport : mine) CheckSetIsWell(transport.get(), 100000);
      CheckSetIsWell(all.value().get(), 100000);
    });
  }
}

TEST(WithoutSharedMemoryTheOtherWireServes) {
  for (int64_t bytes : {int64_t{0}, int64_t{1} << 50}) {
    const auto results = SetUp(3, [&](int, Options* options) {
      if (bytes == 0) options->shm = 0;
      if (bytes > 0) options->shm_bytes = bytes;
    });
    for (const Status& status : results) EXPECT_EQ(status.message(), "");
  }
}

TEST(RanksWithOtherSettingsAreRefusedEverywhere) {
  const auto results = SetUp(3, [](int rank, Options* options) {
    if (rank == 2) options->shm_chunk_bytes = 4096;
  });
  for (const Status& status : results) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("4096 on rank 2"), std::string::npos);
  }
}

}  // namespace
}  // namespace hvd
