// SPDX-License-Identifier: Apache-2.0
// Jobs in which a rank freezes or keeps others waiting: who is named, when the
// job is given up, and when not.
#include "core/control/stall.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "core/log.h"
#include "core/stack_requests.h"
#include "faults.h"
#include "harness.h"
#include "meeting.h"
#include "rounds.h"
#include "run_ranks.h"
#include "runtime_calls.h"
#include "thread_world.h"

namespace hvd {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using Strings = std::vector<std::string>;

// What is logged while this lives.
class Lines {
 public:
  Lines() {
    SetLogSink([this](LogLevel, const std::string& line) {
      std::lock_guard<std::mutex> lock(mutex_);
      lines_.push_back(line);
    });
  }
  ~Lines() { SetLogSink(nullptr); }
  Strings With(const std::string& text) {
    std::lock_guard<std::mutex> lock(mutex_);
    Strings found;
    for (const std::string& line : lines_) {
      if (line.find(text) != std::string::npos) found.push_back(line);
    }
    return found;
  }
  void WaitFor(const std::string& text) {
    const auto limit = Clock::now() + std::chrono::seconds(20);
    while (With(text).empty() && Clock::now() < limit) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_FALSE(With(text).empty());
  }

 private:
  std::mutex mutex_;
  Strings lines_;
};

// How late a thread may be is a quarter of the shortest limit: a rank that owes
// an answer for three eighths of it counts as silent. A thread that is on time
// comes by every 50 ms.
constexpr double kWarning_s = 0.4, kShutdown_s = 0.9, kMostLate_s = 0.1;

Options Limits(double warning_s, double shutdown_s) {
  Options options = Options::Defaults();
  options.stall_warning_s = warning_s;
  options.stall_shutdown_s = shutdown_s;
  options.mismatch_warning_s = 0;
  return options;
}

// Ranks as threads, each with a body. All are thawed before they stop.
class Job {
 public:
  Job(int size, const Options& options, std::vector<std::string> hosts = {},
      int64_t chunk_bytes = 4096)
      : world_(size, std::move(hosts), chunk_bytes),
        options_(options),
        faults_(NewFaults(size)),
        lateness_(size) {}

  Faults& faults(int rank) { return *faults_[rank]; }
  const std::vector<std::vector<int>>* sets = nullptr;

  // Returns by how many seconds the latest thread was late.
  double Run(const std::function<void(int, Runtime*)>& body) {
    const int size = static_cast<int>(faults_.size());
    Meeting over(size);
    RunRanks(size, [&](int rank) {
      Runtime runtime(world_.Open(rank, faults_[rank]), options_);
      EXPECT_EQ(runtime.Start(sets ? *sets : std::vector<std::vector<int>>{})
                    .message(),
                "");
      std::thread stacks([&runtime] {
        while (runtime.stack_requests()->Wait()) {
          runtime.stack_requests()->Written();
        }
      });
      lateness_.Begin();
      body(rank, &runtime);
      // Who leaves is not missed, and must be, for as long as others look.
      over.Wait();
      faults_[rank]->Thaw();
      runtime.Stop();
      stacks.join();
    });
    return std::max(lateness_.most_s(), LongestPause_s(faults_));
  }

  // For bodies. Sleeps, and notes by how much longer than that.
  void Sleep(milliseconds time) {
    const auto start = Clock::now();
    std::this_thread::sleep_for(time);
    lateness_.Note(start + time);
  }
  // What a body does at its beginning is done by now.
  void NoteBegun() { lateness_.NoteBegun(); }

 private:
  ThreadWorld world_;
  const Options options_;
  const std::vector<std::shared_ptr<Faults>> faults_;
  Lateness lateness_;
};

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

double PlayFrozenRank(int size, int frozen) {
  Lines lines;
  Job job(size, Limits(kWarning_s, kShutdown_s));
  const std::string name = "rank " + std::to_string(frozen) + " (localhost)";
  Lateness served(size);      // it may owe its peers a part of 'x'
  std::atomic<int> asked{0};  // for 'y', before the rank freezes
  const double late_s = job.Run([&](int rank, Runtime* runtime) {
    EXPECT_EQ(Start(runtime, {"x"}, {Filled(9, 1.0f)})->Wait().message(), "");
    served.Begin();
    if (rank == frozen) {
      while (asked < size - 1) std::this_thread::yield();
      job.faults(rank).Freeze();
      return;
    }
    const auto start = Clock::now();
    const PendingPtr call = Start(runtime, {"y"}, {Filled(9, 1.0f)});
    served.NoteBegun();
    ++asked;
    const Status status = call->Wait();
    const std::chrono::duration<double> waited = Clock::now() - start;
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    EXPECT_TRUE(Has(status.message(), name + " failed: it has not answered"));
    EXPECT_TRUE(Has(status.message(), "HVD_STALL_SHUTDOWN_S=0.9 "));
    EXPECT_TRUE(waited.count() >= 0.75 && waited.count() < 6);
    const Status later = Start(runtime, {"z"}, {Filled(9, 1.0f)})->Wait();
    EXPECT_EQ(later.code(), StatusCode::kPeerLost);
    EXPECT_TRUE(Has(later.message(), name + " failed: it has not answered"));
    const auto end = runtime->first_peer_end();
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->rank, frozen);
    EXPECT_TRUE(end->failed && end->gave_up);
  });
  const Strings warnings = lines.With(name + " has not answered for");
  // At 0.4 s, and at 0.8 s if that is not long before the end.
  EXPECT_TRUE(warnings.size() == 1 || warnings.size() == 2);
  EXPECT_TRUE(!warnings.empty() &&
              Has(warnings[0], "1 tensor waits on this rank: 'y'"));
  return std::max(late_s, served.most_s());
}

TEST(stall_a_frozen_rank_is_named_and_then_given_up) {
  for (const auto& [size, frozen] : {std::pair(2, 0), {3, 0}, {3, 2}}) {
    PlayUntilOnTime(kMostLate_s, [size = size, frozen = frozen] {
      return PlayFrozenRank(size, frozen);
    });
  }
}

TEST(stall_a_rank_that_freezes_in_a_batch_takes_it_along) {
  for (int frozen : {0, 2}) {
    PlayUntilOnTime(kMostLate_s, [&] {
      Lines lines;
      // Many moves of little memory: under a sanitizer, a rank's first touch of
      // a megabyte takes longer than a thread may be late.
      Job job(3, Limits(kWarning_s, kShutdown_s), {}, /*chunk_bytes=*/256);
      job.faults(frozen).FreezeAtMove(40);  // of some hundred
      const double late_s = job.Run([&](int rank, Runtime* runtime) {
        auto call = Start(runtime, {"big"}, {Filled(20000, 1.0f)});
        job.NoteBegun();
        if (rank == frozen) return;
        // The wire may be the first to tell that another rank has given up.
        EXPECT_EQ(call->Wait().code(), StatusCode::kPeerLost);
        lines.WaitFor("failed: it has not answered");
        const Status later = Start(runtime, {"y"}, {Filled(9, 1.0f)})->Wait();
        EXPECT_TRUE(Has(later.message(), "it has not answered"));
      });
      EXPECT_FALSE(lines.With("1 tensor waits on this rank: 'big'").empty());
      return late_s;
    });
  }
}

// A pause of 0.7 s stays below the limit if no thread is late by more.
TEST(stall_a_pause_below_the_limit_goes_on_with_right_numbers) {
  for (int frozen : {0, 1}) {
    PlayUntilOnTime(0.3, [&] {
      Lines lines;
      Job job(2, Limits(0.1, 1.5));
      const double late_s = job.Run([&](int rank, Runtime* runtime) {
        for (int i = 0; i < 2; ++i) {
          if (rank == frozen) {
            job.faults(rank).Freeze();
            job.Sleep(milliseconds(700));
            job.faults(rank).Thaw();
          }
          auto call = Start(runtime, {"x"}, {Filled(5000, rank + 1.0f)});
          EXPECT_EQ(call->Wait().message(), "");
          EXPECT_TRUE(call->out[0] == Filled(5000, 3.0f));
        }
      });
      EXPECT_TRUE(lines.With("failed:").empty());
      EXPECT_FALSE(lines.With("has not answered").empty());
      EXPECT_FALSE(lines.With("answers again").empty());
      return late_s;
    });
  }
}

TEST(stall_a_rank_that_lives_and_never_asks_is_given_up) {
  PlayUntilOnTime(kMostLate_s, [] {
    Lines lines;
    Job job(3, Limits(kWarning_s, kShutdown_s));
    std::atomic<int> lost{0};
    const double late_s = job.Run([&](int rank, Runtime* runtime) {
      if (rank == 1) {
        while (lost < 2) std::this_thread::sleep_for(milliseconds(1));
        const Status status = Start(runtime, {"x"}, {Filled(9, 1.0f)})->Wait();
        EXPECT_TRUE(Has(status.message(), "rank 1 (localhost) failed"));
        return;
      }
      const PendingPtr call = Start(runtime, {"x"}, {Filled(9, 1.0f)});
      job.NoteBegun();
      const Status status = call->Wait();
      ++lost;
      EXPECT_EQ(status.code(), StatusCode::kPeerLost);
      EXPECT_TRUE(Has(status.message(),
                      "rank 1 (localhost) failed: for 1 s it "
                      "has not asked for 'x'"));
      EXPECT_TRUE(Has(status.message(), "Its Python stack"));
    });
    EXPECT_FALSE(
        lines.With("1 tensor has waited for rank 1 (localhost): 'x'").empty());
    EXPECT_TRUE(lines.With("has not answered").empty());
    return late_s;
  });
}

TEST(stall_a_slow_rank_below_the_limit_is_never_given_up) {
  PlayUntilOnTime(0.25, [] {
    Lines lines;
    Job job(2, Limits(0, 1.5));
    const double late_s = job.Run([&](int rank, Runtime* runtime) {
      for (int i = 0; i < 2; ++i) {
        if (rank == i % 2) job.Sleep(milliseconds(900));
        auto call = Start(runtime, {"x"}, {Filled(100, rank + 1.0f)});
        EXPECT_EQ(call->Wait().message(), "");
        EXPECT_TRUE(call->out[0] == Filled(100, 3.0f));
      }
    });
    EXPECT_TRUE(lines.With("").empty());
    return late_s;
  });
}

TEST(stall_an_idle_job_is_given_up_only_when_asked_to) {
  for (double shutdown_s : {0.0, kShutdown_s}) {
    PlayUntilOnTime(kMostLate_s, [&] {
      Lines lines;
      Job job(2, Limits(kWarning_s, shutdown_s));
      const double late_s = job.Run([&](int rank, Runtime* runtime) {
        if (rank == 1) {
          job.faults(1).Freeze();
          return;
        }
        lines.WaitFor("Nothing waits for it on this rank.");
        if (shutdown_s == 0) {
          std::this_thread::sleep_for(milliseconds(700));
          EXPECT_FALSE(runtime->first_peer_end().has_value());
          return;
        }
        const auto limit = Clock::now() + std::chrono::seconds(20);
        while (!runtime->first_peer_end().has_value() && Clock::now() < limit) {
          std::this_thread::sleep_for(milliseconds(1));
        }
        EXPECT_TRUE(runtime->first_peer_end().has_value());
      });
      EXPECT_EQ(lines.With("failed:").empty(), shutdown_s == 0);
      return late_s;
    });
  }
}

TEST(stall_who_has_left_is_not_missed) {
  PlayUntilOnTime(kMostLate_s, [] {
    Lines lines;
    ThreadWorld world(3);
    const auto faults = NewFaults(3);
    std::atomic<int> left{0};
    RunRanks(3, [&](int rank) {
      Runtime runtime(world.Open(rank, faults[rank]),
                      Limits(kWarning_s, kShutdown_s));
      EXPECT_EQ(runtime.Start({}).message(), "");
      auto call = Start(&runtime, {"x"}, {Filled(9, 1.0f)});
      EXPECT_EQ(call->Wait().message(), "");
      if (rank == 2) {
        while (left < 2) std::this_thread::yield();
        std::this_thread::sleep_for(milliseconds(1200));
      }
      runtime.Stop();
      ++left;
    });
    EXPECT_TRUE(lines.With("").empty());
    return LongestPause_s(faults);
  });
}

TEST(stall_only_members_of_a_set_are_missed) {
  PlayUntilOnTime(kMostLate_s, [] {
    Lines lines;
    Job job(3, Limits(kWarning_s, kShutdown_s));
    const std::vector<std::vector<int>> sets = {{0, 1}};
    job.sets = &sets;
    const double late_s = job.Run([&](int rank, Runtime* runtime) {
      if (rank == 2) return;
      Ask ask{"pair"};
      ask.set = 1;
      if (rank == 0) {
        const Status status = Start(runtime, ask, {Filled(9, 1.0f)})->Wait();
        EXPECT_TRUE(Has(status.message(),
                        "rank 1 (localhost) failed: for 1 s it "
                        "has not asked for 'pair'"));
      } else {
        lines.WaitFor("failed:");
      }
    });
    EXPECT_TRUE(lines.With("rank 2").empty());
    return late_s;
  });
}

// Within a host there is no fault to be had between threads. The second host
// freezes as a whole.
double PlayFrozenHost() {
  Lines lines;
  Options options = Limits(kWarning_s, kShutdown_s);
  options.shm_bytes = 65536;
  options.shm_chunk_bytes = options.chunk_bytes = 4096;
  ThreadWorld world(4, {"a", "a", "b", "b"});
  const auto faults = NewFaults(4);
  Lateness lateness(4);
  Meeting over(4);
  std::atomic<int> asked{0};
  RunRanks(4, [&](int rank) {
    Runtime runtime(world.OpenShared(rank, options, 0, faults[rank]), options);
    EXPECT_EQ(runtime.Start({}).message(), "");
    auto call = Start(&runtime, {"x"}, {Filled(9, 1.0f)});
    EXPECT_EQ(call->Wait().message(), "");
    lateness.Begin();
    if (rank < 2) {
      call = Start(&runtime, {"y"}, {Filled(30000, 1.0f)});
      ++asked;
      const Status status = call->Wait();
      EXPECT_TRUE(Has(status.message(), "(b) failed: it has not answered"));
    } else if (rank == 2) {
      while (asked < 2) std::this_thread::yield();
      for (int other : {2, 3}) faults[other]->Freeze();
      lateness.NoteBegun();
    }
    over.Wait();
    faults[rank]->Thaw();
    runtime.Stop();
  });
  EXPECT_FALSE(lines.With("rank 2 (b) has not answered").empty());
  EXPECT_FALSE(lines.With("rank 3 (b) has not answered").empty());
  return std::max(lateness.most_s(), LongestPause_s(faults));
}

TEST(stall_over_hosts_through_shared_memory) {
  PlayUntilOnTime(kMostLate_s, PlayFrozenHost);
}

TEST(stall_words_name_ranks_tensors_seconds_and_the_remedy) {
  const Stall stall{{1, 2}, {"b", "a", "d", "c", "e"}, 61.4};
  EXPECT_EQ(StallWarning(stall, "rank 1 (h), rank 2 (h)"),
            "For 61 s 5 tensors have waited for rank 1 (h), rank 2 (h): 'a', "
            "'b', 'c', 'd' and 1 more. These ranks answer, so they are slow or "
            "do not run the same operations. The Python stacks of the ranks "
            "that answer follow, each in its own rank's output.");
  EXPECT_EQ(StallFailure({{1}, {"a"}, 90}, "", false, 90.5),
            "for 90 s it has not asked for 'a', which other ranks wait for, "
            "and HVD_STALL_SHUTDOWN_S=90.5 ends the job then. Its Python stack "
            "in its output shows where it was; if it is only slow, give it "
            "longer.");
  EXPECT_EQ(SilenceFailure({1, 12.2}, {"a"}, 12),
            "it has not answered for 12 s ('a' waited), and "
            "HVD_STALL_SHUTDOWN_S=12 ends the job then. It is stopped "
            "(SIGSTOP, a debugger), swapped out or cut off; where such pauses "
            "are expected, allow longer ones.");
}

}  // namespace
}  // namespace hvd
