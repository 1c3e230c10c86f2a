// SPDX-License-Identifier: Apache-2.0
// Shared memory: how much a job takes, and how its ranks come to it.
#include "transport/shm/shm_setup.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "harness.h"
#include "run_ranks.h"
#include "set_of.h"
#include "thread_world.h"
#include "transport_contract.h"

namespace hvd {
namespace {

// By name, as processes do it. What each rank got. `shares`: all of them get
// shared memory.
std::vector<Status> SetUp(int ranks, bool shares,
                          const std::function<void(int, Options*)>& change) {
  ThreadWorld world(ranks);
  std::vector<Status> results(ranks);
  RunRanks(ranks, [&](int rank) {
    Options options = Options::Defaults();
    options.shm_bytes = 65536;  // other tests of this host need some, too
    change(rank, &options);
    auto backend = AddSharedMemory(world.Open(rank), options, {});
    results[rank] = backend.status();
    if (!backend.ok()) return;
    ContractRank self(backend.value().get(), 0, options.shm_chunk_bytes);
    auto transport = self.NewTransport();
    EXPECT_EQ(transport->within_host(), shares && ranks > 1);
    CheckSetIsWell(transport.get(), 100000);
  });
  return results;
}

TEST(ranks_find_their_memory_by_name) {
  for (int ranks : {1, 2, 5}) {
    for (const Status& status : SetUp(ranks, true, [](int, Options*) {})) {
      EXPECT_EQ(status.message(), "");
    }
  }
}

TEST(autotune_may_try_larger_chunks_than_a_job_begins_with) {
  for (const bool autotune : {false, true}) {
    ThreadWorld world(1);
    Options options = Options::Defaults();
    options.autotune = autotune;
    options.shm_chunk_bytes = 8192;
    auto backend = AddSharedMemory(world.Open(0), options, {});
    ASSERT_TRUE(backend.ok());
    auto transport = backend.value()->NewTransport(0, SetOf({0}, 0));
    ASSERT_TRUE(transport.ok());
    const ChunkLimits limits = transport.value()->chunk_limits();
    EXPECT_EQ(limits.bytes, 8192);
    EXPECT_EQ(limits.most_bytes, autotune ? 1 << 20 : 8192);
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

TEST(a_set_takes_memory_of_its_members_only) {
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

TEST(sets_of_different_members_have_the_memory_they_need) {
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
        auto transport = backend.value()->NewTransport(static_cast<int>(i) + 1,
                                                       SetOf(ranks, rank));
        ASSERT_TRUE(transport.ok());
        mine.push_back(std::move(transport.value()));
      }
      auto all = backend.value()->NewTransport(0, SetOf({0, 1, 2, 3}, rank));
      ASSERT_TRUE(all.ok());
      EXPECT_TRUE(mine[0]->within_host());  // and so there is shared memory
      for (auto& transport : mine) CheckSetIsWell(transport.get(), 100000);
      CheckSetIsWell(all.value().get(), 100000);
    });
  }
}

TEST(without_shared_memory_the_other_wire_serves) {
  for (int64_t bytes : {int64_t{0}, int64_t{1} << 50}) {
    const auto results = SetUp(3, false, [&](int, Options* options) {
      if (bytes == 0) options->shm = 0;
      if (bytes > 0) options->shm_bytes = bytes;
    });
    for (const Status& status : results) EXPECT_EQ(status.message(), "");
  }
}

TEST(ranks_with_other_settings_are_refused_everywhere) {
  const auto results = SetUp(3, false, [](int rank, Options* options) {
    if (rank == 2) options->shm_chunk_bytes = 4096;
  });
  for (const Status& status : results) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("4096 on rank 2"), std::string::npos);
  }
}

}  // namespace
}  // namespace hvd
