// SPDX-License-Identifier: Apache-2.0
// Process sets that come and go while the job is under load, with slow and far
// ranks, and until a rank ends.
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "faults.h"
#include "forwarding_backend.h"
#include "harness.h"
#include "runtime_calls.h"
#include "runtime_sets.h"
#include "thread_world.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

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

// In use, without what the allocator keeps. 0 where it cannot be known.
size_t UsedBytes() { return test::kIsSanitized ? 0 : mallinfo2().uordblks; }

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
    Cycle(rank, kSize, runtime, test::Times(1000, 300));
  });
  RunShared(kSize, {}, [](int rank, Runtime* runtime) {
    Load global(runtime, 0, 5000);
    Cycle(rank, kSize, runtime, test::Times(1000, 300));
  });
}

TEST(sets_come_and_go_beside_a_set_under_load) {
  RunByMailboxes(3, {{0, 2}}, [](int rank, Runtime* runtime) {
    std::unique_ptr<Load> other;
    if (rank != 1) other = std::make_unique<Load>(runtime, 1, 3000);
    for (int i = 0; i < test::Times(200, 60); ++i) {
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

// Messages to this rank take a while. Its thread does not.
class FarBackend final : public ForwardingBackend {
 public:
  explicit FarBackend(std::unique_ptr<Backend> base)
      : ForwardingBackend(std::move(base)),
        channel_(&ForwardingBackend::channel()) {}

  Channel& channel() override { return channel_; }
  bool arrivals_ring() const override { return false; }

 private:
  class FarChannel final : public Channel {
   public:
    explicit FarChannel(Channel* base) : base_(base) {}
    void Send(int peer, SharedBytes message) override {
      base_->Send(peer, std::move(message));
    }
    bool Receive(int* peer, std::string* message) override {
      const auto now = std::chrono::steady_clock::now();
      Letter letter;
      while (base_->Receive(&letter.peer, &letter.message)) {
        letter.due = now + milliseconds(2);
        letters_.push_back(letter);
      }
      if (letters_.empty() || letters_.front().due > now) return false;
      *peer = letters_.front().peer;
      *message = std::move(letters_.front().message);
      letters_.pop_front();
      return true;
    }
    bool Flush() override { return base_->Flush(); }
    Status status() const override { return base_->status(); }

   private:
    struct Letter {
      std::chrono::steady_clock::time_point due;
      int peer = 0;
      std::string message;
    };
    Channel* const base_;
    std::deque<Letter> letters_;
  };

  std::unique_ptr<Backend> base_;
  FarChannel channel_;
};

// A member that hears of the removal late asks its leader, which has left.
TEST(sets_that_are_gone_are_still_asked_by_far_members) {
  ThreadWorld world(3, {}, 4096);
  const auto body = [](int rank, Runtime* runtime) {
    for (int i = 0; i < 10; ++i) {
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
  };
  RunRuntimes(3, Dynamic(), {}, body,
              [&](int rank) -> std::unique_ptr<Backend> {
                if (rank < 2) return world.Open(rank);
                return std::make_unique<FarBackend>(world.Open(rank));
              });
}

// New sets begin before a far member has heard of what was before.
TEST(sets_come_and_go_with_a_far_rank) {
  for (int far = 0; far < 3; ++far) {
    ThreadWorld world(3, {}, 4096);
    RunRuntimes(
        3, Dynamic(), {},
        [](int rank, Runtime* runtime) { Cycle(rank, 3, runtime, 40); },
        [&](int rank) -> std::unique_ptr<Backend> {
          if (rank != far) return world.Open(rank);
          return std::make_unique<FarBackend>(world.Open(rank));
        });
  }
}

// Ranks end at any moment of a change. All calls return, and say why.
TEST(sets_survive_a_rank_that_ends_in_the_middle) {
  for (int seed = 0; seed < test::Times(60, 24); ++seed) {
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

}  // namespace
}  // namespace hvd
