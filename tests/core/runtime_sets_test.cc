// SPDX-License-Identifier: Apache-2.0
// Process sets that come and go in whole jobs, with ranks as threads.
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "harness.h"
#include "runtime_calls.h"
#include "runtime_jobs.h"
#include "thread_backend.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;
using Ranks = std::vector<int>;
using Body = std::function<void(int, Runtime*)>;

Options Dynamic() {
  Options options = Options::Defaults();
  options.dynamic_process_sets = 1;
  return options;
}

void RunRuntimes(int size, const Options& options,
                 const std::vector<Ranks>& sets, const Body& body,
                 const std::function<std::unique_ptr<Backend>(int)>& open) {
  RunRanks(size, [&](int rank) {
    Runtime runtime(open(rank), options);
    EXPECT_EQ(runtime.Start(sets).message(), "");
    body(rank, &runtime);
    runtime.Stop();
  });
}

void RunByMailboxes(int size, const std::vector<Ranks>& sets, const Body& body,
                    const std::vector<std::shared_ptr<Faults>>& faults = {},
                    const Options& options = Dynamic()) {
  ThreadWorld world(size, {}, 4096);
  RunRuntimes(size, options, sets, body, [&](int rank) {
    return faults.empty() ? world.Open(rank) : world.Open(rank, faults[rank]);
  });
}

// shm_bytes are beside what `sets` reserve.
void RunShared(int size, const std::vector<std::string>& hosts,
               const Body& body, int64_t shm_bytes = 1 << 20) {
  Options options = Dynamic();
  options.shm_bytes = shm_bytes;
  options.shm_chunk_bytes = options.chunk_bytes = 4096;
  ThreadWorld world(size, hosts);
  RunRuntimes(size, options, {}, body,
              [&](int rank) { return world.OpenShared(rank, options, 0); });
}

// Over mailboxes, within a host, and over two hosts.
void RunEverywhere(int size, const Body& body) {
  RunByMailboxes(size, {}, body);
  RunShared(size, {}, body);
  std::vector<std::string> hosts(size, "a");
  std::fill(hosts.begin() + (size + 1) / 2, hosts.end(), "b");
  RunShared(size, hosts, body);
}

bool IsIn(const Ranks& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

int AddSet(Runtime* runtime, const Ranks& ranks) {
  const Result<int> id = runtime->AddProcessSet(ranks);
  EXPECT_EQ(id.status().message(), "");
  return id.ok() ? id.value() : -1;
}

PendingPtr Sum(Runtime* runtime, int set, const std::string& name, size_t count,
               float value) {
  Ask ask{name};
  ask.set = set;
  return Start(runtime, ask, {Filled(count, value)});
}

void ExpectSum(const PendingPtr& call, size_t count, float sum) {
  EXPECT_EQ(call->Wait().message(), "");
  EXPECT_TRUE(call->out[0] == Filled(count, sum));
}

void ExpectText(const Status& status, StatusCode code,
                const std::string& part) {
  EXPECT_EQ(static_cast<int>(status.code()), static_cast<int>(code));
  const bool has = status.message().find(part) != std::string::npos;
  if (!has) EXPECT_EQ(status.message(), part);
}

// Allreduces on a set, until all of its members have asked it to stop.
class Load {
 public:
  Load(Runtime* runtime, int set, size_t count)
      : thread_([this, runtime, set, count] { Run(runtime, set, count); }) {}
  ~Load() {
    stops_ = true;
    thread_.join();
    EXPECT_TRUE(steps_ > 0);
  }

 private:
  void Run(Runtime* runtime, int set, size_t count) {
    const auto members =
        static_cast<float>(runtime->process_set(set)->ranks.size());
    for (;; ++steps_) {
      const auto step = static_cast<float>(steps_ % 1000);
      Ask ask{"load"};
      ask.set = set;
      const PendingPtr call =
          Start(runtime, ask, {Filled(count, step), Filled(1, stops_)});
      EXPECT_EQ(call->Wait().message(), "");
      EXPECT_TRUE(call->out[0] == Filled(count, step * members));
      if (call->out[1][0] == members) return;
    }
  }

  std::atomic<bool> stops_{false};
  int steps_ = 0;
  std::thread thread_;
};

TEST(sets_are_added_used_and_removed) {
  RunEverywhere(4, [](int rank, Runtime* runtime) {
    const Ranks ranks = {2, 0};
    EXPECT_EQ(AddSet(runtime, ranks), 1);
    const ProcessSetPtr set = runtime->process_set(1);
    ASSERT_TRUE(set != nullptr);
    EXPECT_TRUE((set->ranks == Ranks{0, 2}));
    EXPECT_EQ(set->rank, rank % 2 == 0 ? rank / 2 : -1);
    EXPECT_EQ(AddSet(runtime, {3}), 2);
    if (IsIn(ranks, rank)) {
      ExpectSum(Sum(runtime, 1, "x", 9000, 1.0f + rank), 9000, 4.0f);
      Ask gather{"g", Verb::kAllgather};
      gather.set = 1;
      auto call = Start(runtime, gather, {Filled(1, 1.0f * rank)});
      EXPECT_EQ(call->Wait().message(), "");
      EXPECT_TRUE((call->out[0] == Floats{0, 2}));
    }
    if (rank == 3) ExpectSum(Sum(runtime, 2, "x", 10, 5), 10, 5);
    ExpectSum(Sum(runtime, 0, "x", 10, 1), 10, 4);
    EXPECT_EQ(runtime->RemoveProcessSet(1).message(), "");
    EXPECT_TRUE(runtime->process_set(1) == nullptr);
    EXPECT_EQ(runtime->process_set_count(), 2);
    ExpectText(Sum(runtime, 1, "x", 2, 1)->Wait(), StatusCode::kInvalidArgument,
               "names process set 1, which does not exist");
    // Whoever has the set still cannot get into the one that has its id now.
    EXPECT_EQ(AddSet(runtime, {0, 1}), 1);
    EXPECT_NE(runtime->process_set(1)->serial, set->serial);
    if (set->rank >= 0) {
      auto stale = std::make_shared<Pending>();
      stale->entry.request.key.name = "stale";
      stale->entry.done = [raw = stale.get()](const Status& status) {
        raw->Finish(status);
      };
      runtime->Enqueue(*set, EntryPtr(stale, &stale->entry));
      ExpectText(stale->Wait(), StatusCode::kFailedPrecondition, "removed");
    }
    if (rank < 2) ExpectSum(Sum(runtime, 1, "x", 7, 1), 7, 2);
  });
}

TEST(sets_of_the_start_can_be_removed) {
  RunByMailboxes(3, {{0, 1}, {1, 2}}, [](int rank, Runtime* runtime) {
    EXPECT_EQ(runtime->RemoveProcessSet(1).message(), "");
    EXPECT_EQ(AddSet(runtime, {0, 2}), 1);
    if (rank != 1) ExpectSum(Sum(runtime, 1, "x", 3, 1), 3, 2);
    if (rank != 0) ExpectSum(Sum(runtime, 2, "x", 3, 1), 3, 2);
  });
}

TEST(sets_cannot_change_unless_that_was_asked_for) {
  ThreadWorld world(2);
  RunRuntimes(
      2, Options::Defaults(), {},
      [](int, Runtime* runtime) {
        ExpectText(runtime->AddProcessSet({0}).status(),
                   StatusCode::kFailedPrecondition,
                   "add_process_set needs HVD_DYNAMIC_PROCESS_SETS=1");
        ExpectText(runtime->RemoveProcessSet(1),
                   StatusCode::kFailedPrecondition,
                   "remove_process_set needs HVD_DYNAMIC_PROCESS_SETS=1");
      },
      [&](int rank) { return world.Open(rank); });
}

TEST(sets_that_cannot_be_fail_on_all_ranks_alike) {
  RunEverywhere(3, [](int rank, Runtime* runtime) {
    EXPECT_EQ(AddSet(runtime, {0, 1}), 1);
    ExpectText(runtime->AddProcessSet({1, 0}).status(),
               StatusCode::kInvalidArgument, "process set 1 has the same");
    ExpectText(runtime->AddProcessSet({0, 1, 2}).status(),
               StatusCode::kInvalidArgument, "these are all ranks");
    ExpectText(runtime->RemoveProcessSet(2), StatusCode::kInvalidArgument,
               "there is no process set 2");
    // One rank's mistake.
    ExpectText(
        runtime->AddProcessSet(rank == 2 ? Ranks{0, 3} : Ranks{0, 2}).status(),
        StatusCode::kInvalidArgument,
        "add_process_set failed on rank 2, and so on all ranks: A process set "
        "names rank 3");
    ExpectText(runtime->AddProcessSet({rank}).status(),
               StatusCode::kFailedPrecondition,
               "differently: add_process_set([0]) on rank 0, "
               "add_process_set([1]) on rank 1, add_process_set([2]) on rank "
               "2");
    const Status mixed = rank == 1 ? runtime->RemoveProcessSet(1)
                                   : runtime->AddProcessSet({0, 2}).status();
    ExpectText(mixed, StatusCode::kFailedPrecondition,
               "add_process_set([0, 2]) on ranks 0, 2, remove_process_set of "
               "set 1 on rank 1");
    EXPECT_EQ(runtime->process_set_count(), 2);
    EXPECT_EQ(AddSet(runtime, {0, 2}), 2);
  });
}

TEST(sets_one_member_has_no_memory_for_fail_on_all_ranks) {
  // Room for two sets of two ranks on each rank.
  RunShared(
      4, {},
      [](int rank, Runtime* runtime) {
        EXPECT_EQ(AddSet(runtime, {0, 1}), 1);
        EXPECT_EQ(AddSet(runtime, {1, 2}), 2);
        for (int i = 0; i < 3; ++i) {
          const Status full = runtime->AddProcessSet({1, 3}).status();
          ExpectText(full, StatusCode::kResourceExhausted,
                     "add_process_set([1, 3]) failed on rank 1, and so on all "
                     "ranks: the shared memory has no room");
          ExpectText(full, StatusCode::kResourceExhausted, "HVD_SHM_BYTES");
        }
        EXPECT_EQ(runtime->process_set_count(), 3);
        EXPECT_EQ(AddSet(runtime, {0, 3}), 3);
        EXPECT_EQ(runtime->RemoveProcessSet(2).message(), "");
        EXPECT_EQ(AddSet(runtime, {1, 3}), 2);
        if (rank % 2 == 1) {
          ExpectSum(Sum(runtime, 2, "x", 70000, 1), 70000, 2);
        }
        ExpectSum(Sum(runtime, 0, "x", 70000, 1), 70000, 4);
      },
      65536);
}

TEST(sets_get_memory_though_other_sets_use_all_of_it) {
  for (const bool on_two_hosts : {false, true}) {
    std::vector<std::string> hosts;
    if (on_two_hosts) hosts = {"a", "a", "b", "b"};
    RunShared(
        4, hosts,
        [](int rank, Runtime* runtime) {
          std::vector<std::unique_ptr<Load>> loads;
          loads.push_back(std::make_unique<Load>(runtime, 0, 100000));
          for (int i = 0; i < 30; ++i) {
            EXPECT_EQ(AddSet(runtime, {0, 1, 3}), 1);
            if (rank != 2) {
              ExpectSum(Sum(runtime, 1, "x", 30000, 1), 30000, 3);
            }
            EXPECT_EQ(runtime->RemoveProcessSet(1).message(), "");
          }
        },
        131072);
  }
}

TEST(sets_that_are_removed_fail_what_waits_and_complete_what_is_agreed) {
  RunEverywhere(3, [](int rank, Runtime* runtime) {
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(AddSet(runtime, {0, 1}), 1);
      PendingPtr agreed, alone, racer;
      if (rank < 2) {
        agreed = Sum(runtime, 1, "agreed", 50000, 1);
        if (rank == i % 2) alone = Sum(runtime, 1, "alone", 5, 1);
        racer = Sum(runtime, 1, "racer", 5, 1);
      }
      EXPECT_EQ(runtime->RemoveProcessSet(1).message(), "");
      if (alone != nullptr) {
        ExpectText(alone->Wait(), StatusCode::kFailedPrecondition,
                   "'alone' cannot complete: process set 1 (ranks [0, 1]) was "
                   "removed by remove_process_set");
      }
      // What both had asked for may or may not have been agreed by then.
      float completed = 0;
      for (const PendingPtr& call : {agreed, racer}) {
        if (call == nullptr) continue;
        const Status status = call->Wait();
        if (status.ok()) {
          EXPECT_TRUE(call->out[0] == Filled(call->in[0].size(), 2));
          ++completed;
        } else {
          ExpectText(status, StatusCode::kFailedPrecondition, "was removed");
        }
      }
      // But in the same way on both.
      Ask all{"completed", Verb::kAllgather};
      auto call = Start(runtime, all, {Filled(1, completed)});
      EXPECT_EQ(call->Wait().message(), "");
      EXPECT_EQ(call->out[0][0], call->out[0][1]);
    }
  });
}

TEST(sets_go_on_while_another_waits) {
  RunEverywhere(4, [](int rank, Runtime* runtime) {
    EXPECT_EQ(AddSet(runtime, {0, 1}), 1);
    PendingPtr stuck;
    if (rank == 0) stuck = Sum(runtime, 1, "stuck", 10, 1);
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(AddSet(runtime, {0, 2, 3}), 2);
      if (rank != 1) ExpectSum(Sum(runtime, 2, "x", 100, 1), 100, 3);
      EXPECT_EQ(runtime->RemoveProcessSet(2).message(), "");
    }
    if (rank == 0) EXPECT_FALSE(stuck->told());
    if (rank == 1) stuck = Sum(runtime, 1, "stuck", 10, 1);
    if (rank < 2) ExpectSum(stuck, 10, 2);
  });
}

// In use, without what the allocator keeps. 0 where it cannot be known.
size_t UsedBytes() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 0;
#else
  return mallinfo2().uordblks;
#endif
}

// Two sets at a time, of changing ranks, are used and go in changing order.
void Cycle(int rank, int size, Runtime* runtime, int cycles) {
  std::mt19937 random(7);  // the same on all ranks
  std::map<int, Ranks> alive;
  size_t used_early = 0;
  for (int cycle = 0; cycle < cycles; ++cycle) {
    Ranks ranks;
    const unsigned mask = 1 + random() % ((1u << size) - 2);
    for (int r = 0; r < size; ++r) {
      if ((mask >> r & 1) != 0) ranks.push_back(r);
    }
    const bool exists =
        std::any_of(alive.begin(), alive.end(),
                    [&](const auto& set) { return set.second == ranks; });
    if (exists) continue;
    const int id = AddSet(runtime, ranks);
    EXPECT_TRUE(id >= 1 && id <= 2);  // used again
    alive[id] = ranks;
    std::vector<std::pair<PendingPtr, float>> calls;
    for (const auto& [set, members] : alive) {
      if (!IsIn(members, rank)) continue;
      const float own = 100.0f * static_cast<float>(cycle % 100 + set);
      const float sum = own * static_cast<float>(members.size()) +
                        static_cast<float>(
                            std::accumulate(members.begin(), members.end(), 0));
      const size_t count = 1 + (cycle * 37 + set) % 3000;
      calls.emplace_back(Sum(runtime, set, "x", count, own + rank), sum);
    }
    for (const auto& [call, sum] : calls) {
      ExpectSum(call, call->in[0].size(), sum);
    }
    if (alive.size() == 2) {
      const int gone = 1 + static_cast<int>(random() % 2);
      if (IsIn(alive[gone], rank) && rank == alive[gone][0]) {
        Sum(runtime, gone, "never", 1, 1);  // a report that comes late
      }
      EXPECT_EQ(runtime->RemoveProcessSet(gone).message(), "");
      alive.erase(gone);
    }
    if (cycle == cycles / 4) used_early = UsedBytes();
  }
  const size_t used = UsedBytes();
  EXPECT_TRUE(used < used_early + (1 << 19));
  if (used >= used_early + (1 << 19)) EXPECT_EQ(used, used_early);
}

TEST(sets_come_and_go_a_thousand_times_under_load) {
  constexpr int kSize = 4;
  RunByMailboxes(kSize, {}, [](int rank, Runtime* runtime) {
    Load global(runtime, 0, 500);
    Cycle(rank, kSize, runtime, 1000);
  });
  RunShared(kSize, {}, [](int rank, Runtime* runtime) {
    Load global(runtime, 0, 5000);
    Cycle(rank, kSize, runtime, 1000);
  });
}

TEST(sets_come_and_go_beside_a_set_under_load) {
  RunByMailboxes(3, {{0, 2}}, [](int rank, Runtime* runtime) {
    std::unique_ptr<Load> other;
    if (rank != 1) other = std::make_unique<Load>(runtime, 1, 3000);
    for (int i = 0; i < 200; ++i) {
      EXPECT_EQ(AddSet(runtime, {0, 1}), 2);
      if (rank < 2) ExpectSum(Sum(runtime, 2, "x", 10, 1), 10, 2);
      EXPECT_EQ(runtime->RemoveProcessSet(2).message(), "");
    }
  });
}

TEST(sets_come_and_go_with_a_slow_rank) {
  for (int slow = 0; slow < 3; ++slow) {
    std::vector<std::shared_ptr<Faults>> faults;
    for (int i = 0; i < 3; ++i) faults.push_back(std::make_shared<Faults>());
    faults[slow]->Delay(std::chrono::microseconds(300));
    RunByMailboxes(
        3, {}, [](int rank, Runtime* runtime) { Cycle(rank, 3, runtime, 60); },
        faults);
  }
}

// A member that hears of the removal late asks its leader, which has left.
TEST(sets_that_are_gone_are_still_asked_by_slow_members) {
  std::vector<std::shared_ptr<Faults>> faults;
  for (int i = 0; i < 3; ++i) faults.push_back(std::make_shared<Faults>());
  faults[2]->Delay(std::chrono::microseconds(500));
  RunByMailboxes(
      3, {},
      [](int rank, Runtime* runtime) {
        for (int i = 0; i < 20; ++i) {
          EXPECT_EQ(AddSet(runtime, {1, 2}), 1);
          std::thread asks;
          std::vector<PendingPtr> calls;
          if (rank == 2) {
            asks = std::thread([&] {
              while (runtime->process_set(1) != nullptr) {
                calls.push_back(
                    Sum(runtime, 1, std::to_string(calls.size()), 1, 1));
                std::this_thread::sleep_for(std::chrono::microseconds(50));
              }
            });
          }
          EXPECT_EQ(runtime->RemoveProcessSet(1).message(), "");
          if (rank == 2) asks.join();
          for (const PendingPtr& call : calls) EXPECT_FALSE(call->Wait().ok());
        }
      },
      faults);
}

TEST(sets_wait_for_a_rank_and_fail_when_it_ends) {
  for (const bool fails : {true, false}) {
    RunEverywhere(3, [fails](int rank, Runtime* runtime) {
      EXPECT_EQ(AddSet(runtime, {0, 1}), 1);
      if (rank == 2) {
        std::this_thread::sleep_for(milliseconds(20));
        if (fails) runtime->AnnounceFailure("ValueError: no");
        return;
      }
      const Status status = runtime->AddProcessSet({1, 2}).status();
      ExpectText(status, StatusCode::kPeerLost,
                 "add_process_set([1, 2]) cannot complete: rank 2 ");
      ExpectText(status, StatusCode::kPeerLost,
                 fails ? "failed: ValueError: no" : "has left");
      ExpectText(runtime->RemoveProcessSet(1), StatusCode::kPeerLost,
                 "remove_process_set of set 1 cannot complete: rank 2 ");
      // Those that are left may go on.
      if (!fails) ExpectSum(Sum(runtime, 1, "x", 10, 1), 10, 2);
    });
  }
}

TEST(sets_fail_when_their_own_rank_ends) {
  RunByMailboxes(2, {}, [](int rank, Runtime* runtime) {
    if (rank == 1) return;
    std::thread stops([&] {
      std::this_thread::sleep_for(milliseconds(20));
      runtime->Stop();
    });
    const Status status = runtime->AddProcessSet({0}).status();
    EXPECT_EQ(static_cast<int>(status.code()),
              static_cast<int>(StatusCode::kPeerLost));
    stops.join();
    ExpectText(runtime->AddProcessSet({0}).status(), StatusCode::kPeerLost,
               "add_process_set([0]) cannot start: ");
  });
}

// Ranks end at any moment of a change. All calls return, and say why.
TEST(sets_survive_a_rank_that_ends_in_the_middle) {
  for (int seed = 0; seed < 60; ++seed) {
    const int victim = seed % 3;
    const bool fails = seed % 2 == 0;
    const auto body = [&](int rank, Runtime* runtime) {
      std::thread ends;
      if (rank == victim) {
        ends = std::thread([&] {
          std::this_thread::sleep_for(
              std::chrono::microseconds(std::mt19937(seed)() % 3000));
          if (fails) runtime->AnnounceFailure("it was to fail");
          runtime->Stop();
        });
      }
      for (Status status; status.ok();) {
        const Result<int> id = runtime->AddProcessSet({0, 1});
        status = id.status();
        if (!status.ok()) break;
        PendingPtr call;
        if (rank < 2) call = Sum(runtime, id.value(), "x", 3000, 1);
        if (call != nullptr) {
          const Status done = call->Wait();
          EXPECT_NE(done.message(), "still waiting");
          if (done.ok()) EXPECT_TRUE(call->out[0] == Filled(3000, 2));
        }
        status = runtime->RemoveProcessSet(id.value());
      }
      if (rank == victim) ends.join();
    };
    if (seed % 4 < 2) {
      RunByMailboxes(3, {}, body);
    } else {
      RunShared(3, {}, body);
    }
  }
}

TEST(sets_a_rank_that_does_not_ask_is_named) {
  Options options = Dynamic();
  options.stall_warning_s = 0.2;
  options.stall_shutdown_s = 0.5;
  std::atomic<int> failed{0};
  RunByMailboxes(
      3, {},
      [&](int rank, Runtime* runtime) {
        if (rank == 1) {
          while (failed < 2) std::this_thread::sleep_for(milliseconds(5));
          return;
        }
        ExpectText(runtime->AddProcessSet({0, 1}).status(),
                   StatusCode::kPeerLost,
                   "rank 1 (localhost) failed: for 1 s it has not asked for "
                   "'add_process_set([0, 1])'");
        ++failed;
      },
      {}, options);
}

}  // namespace
}  // namespace hvd
