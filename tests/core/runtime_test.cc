// SPDX-License-Identifier: Apache-2.0
// Runtime: whole jobs with ranks as threads, from Enqueue to done.
#include "core/runtime.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "core/log.h"
#include "harness.h"
#include "runtime_calls.h"
#include "thread_backend.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

// A job: body(rank, runtime) on one thread per rank, stopped at the end.
void RunJob(ThreadWorld* world, int size,
            const std::vector<std::vector<int>>& sets,
            const std::function<void(int, Runtime*)>& body,
            const std::vector<std::shared_ptr<Faults>>& faults = {}) {
  RunRanks(size, [&](int rank) {
    Runtime runtime(
        faults.empty() ? world->Open(rank) : world->Open(rank, faults[rank]),
        Options::Defaults());
    EXPECT_EQ(runtime.Start(sets).message(), "");
    body(rank, &runtime);
    runtime.Stop();
  });
}

// Through memory that the ranks of a host share.
void RunSharedJob(int size, const std::vector<std::string>& hosts,
                  const std::function<void(int, Runtime*)>& body) {
  Options options = Options::Defaults();
  options.shm_bytes = 65536;
  options.shm_piece_bytes = options.piece_bytes = 4096;
  ThreadWorld world(size, hosts);
  RunRanks(size, [&](int rank) {
    Runtime runtime(world.OpenShared(rank, options, 0), options);
    EXPECT_EQ(runtime.Start({}).message(), "");
    body(rank, &runtime);
    runtime.Stop();
  });
}

// By mailboxes, on one host, and, with three ranks and more, on two hosts.
void RunJob(int size, const std::function<void(int, Runtime*)>& body) {
  ThreadWorld world(size, {}, 4096);
  RunJob(&world, size, {}, body);
  RunSharedJob(size, {}, body);
  if (size < 3) return;
  std::vector<std::string> hosts(size, "a");
  std::fill(hosts.begin() + (size + 1) / 2, hosts.end(), "b");
  RunSharedJob(size, hosts, body);
}

TEST(runtime_every_verb_at_many_sizes) {
  for (int size : {1, 2, 3, 4, 8}) {
    RunJob(size, [size](int rank, Runtime* runtime) {
      for (size_t count : {0, 1, 5, 1000, 70000}) {
        const std::string tag = std::to_string(count);
        auto sum = Start(runtime, {"sum" + tag},
                         {Filled(count, rank + 1.0f), Filled(3, 2.0f)});
        auto gather = Start(runtime, {"gather" + tag, Verb::kAllgather},
                            {Filled(count + rank, 1.0f * rank)});
        Ask from_last{"bcast" + tag, Verb::kBroadcast};
        from_last.root = size - 1;
        auto bcast = Start(runtime, from_last, {Filled(count, 10.0f + rank)});
        EXPECT_EQ(sum->Wait().message(), "");
        EXPECT_EQ(gather->Wait().message(), "");
        EXPECT_EQ(bcast->Wait().message(), "");
        EXPECT_TRUE(sum->out[0] == Filled(count, size * (size + 1) / 2.0f));
        EXPECT_TRUE(sum->out[1] == Filled(3, 2.0f * size));
        EXPECT_TRUE(bcast->out[0] == Filled(count, 10.0f + size - 1));
        Floats rows;
        for (int r = 0; r < size; ++r) rows.insert(rows.end(), count + r, r);
        EXPECT_TRUE(gather->out[0] == rows);
      }
    });
  }
}

TEST(runtime_random_order_from_many_threads) {
  constexpr int kSize = 3, kSteps = 12, kTensors = 40;
  RunJob(kSize, [](int rank, Runtime* runtime) {
    std::mt19937 random(rank);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<int> order(kTensors);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      std::vector<PendingPtr> calls(kTensors);
      auto start = [&](int begin, int end) {
        for (int i = begin; i < end; ++i) {
          const int t = order[i];
          calls[t] =
              Start(runtime, {"t" + std::to_string(t)},
                    {Filled(static_cast<size_t>(t) * 97, t + step + rank)});
        }
      };
      std::thread other(start, 0, kTensors / 2);
      start(kTensors / 2, kTensors);
      other.join();
      for (int t = 0; t < kTensors; ++t) {
        EXPECT_EQ(calls[t]->Wait().message(), "");
        EXPECT_TRUE(calls[t]->out[0] ==
                    Filled(static_cast<size_t>(t) * 97,
                           kSize * (t + step) + 0.0f + 1 + 2));
      }
    }
  });
}

TEST(runtime_opposite_order_with_gaps) {
  RunJob(2, [](int rank, Runtime* runtime) {
    std::vector<PendingPtr> calls;
    for (int i = 0; i < 20; ++i) {
      const int t = rank == 0 ? i : 19 - i;
      calls.push_back(
          Start(runtime, {"t" + std::to_string(t)}, {Filled(8, 1.0f)}));
      std::this_thread::sleep_for(milliseconds(2));
    }
    for (auto& call : calls) {
      EXPECT_EQ(call->Wait().message(), "");
      EXPECT_TRUE(call->out[0] == Filled(8, 2.0f));
    }
  });
}

TEST(runtime_a_disagreement_fails_on_all_and_the_job_goes_on) {
  RunJob(3, [](int rank, Runtime* runtime) {
    auto bad = Start(runtime, {"x"}, {Filled(rank == 1 ? 4 : 3, 1.0f)});
    Status status = bad->Wait();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find("ranks 0, 2: [3]; rank 1: [4]"),
              std::string::npos);
    auto good = Start(runtime, {"x"}, {Filled(3, 1.0f)});
    EXPECT_EQ(good->Wait().message(), "");
    EXPECT_TRUE(good->out[0] == Filled(3, 3.0f));
  });
}

TEST(runtime_an_aborted_step_is_seen_within_a_second) {
  RunJob(2, [](int rank, Runtime* runtime) {
    Ask ask{"x"};
    ask.step = 10 + rank;
    if (rank == 1) {
      auto call = Start(runtime, ask, {Filled(2, 1.0f)});
      runtime->Cancel(0, call->ticket, Cancelled("NaN in 'loss'"));
      EXPECT_EQ(call->Wait().code(), StatusCode::kCancelled);
    } else {
      std::this_thread::sleep_for(milliseconds(20));
      auto call = Start(runtime, ask, {Filled(2, 1.0f)});
      Status status = call->Wait(milliseconds(1000));
      EXPECT_NE(status.message().find("rank 1 aborted its step: NaN"),
                std::string::npos);
    }
    ask.step = 20 + rank;
    auto next = Start(runtime, ask, {Filled(2, 1.0f)});
    EXPECT_EQ(next->Wait().message(), "");
  });
}

TEST(runtime_a_rank_that_leaves_fails_what_waits_for_it) {
  ThreadWorld world(3, {"alpha", "beta", "gamma"});
  std::atomic<int> served{0};
  RunJob(&world, 3, {}, [&](int rank, Runtime* runtime) {
    auto first = Start(runtime, {"x"}, {Filled(50000, 1.0f)});
    EXPECT_EQ(first->Wait().message(), "");
    if (rank == 1) return;
    auto second = Start(runtime, {"y"}, {Filled(2, 1.0f)});
    Status status = second->Wait();
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    EXPECT_NE(status.message().find("'y' cannot complete: rank 1 (beta) has "
                                    "left"),
              std::string::npos);
    auto third = Start(runtime, {"z"}, {Filled(2, 1.0f)});
    EXPECT_EQ(third->Wait().code(), StatusCode::kPeerLost);
    EXPECT_EQ(runtime->first_peer_end()->rank, 1);
    EXPECT_FALSE(runtime->first_peer_end()->failed);
    // The end of this one could reach the other before the leaver's does.
    ++served;
    while (served < 2) std::this_thread::yield();
  });
}

TEST(runtime_a_rank_that_left_is_remembered_with_the_scope_it_ended) {
  for (int leaver : {0, 1}) {  // the leader or not
    for (bool taken_back : {false, true}) {
      RunJob(2, [&](int rank, Runtime* runtime) {
        if (rank == leaver) {
          runtime->EndScope(0, "gradient/", "its loop ended at step 5");
          if (taken_back) runtime->EndScope(0, "gradient/", "");
          return;
        }
        while (!runtime->first_peer_end().has_value()) {
          std::this_thread::yield();
        }
        auto late = Start(runtime, {"gradient/x"}, {Filled(2, 1.0f)});
        const std::string message = late->Wait().message();
        EXPECT_EQ(late->Wait().code(), StatusCode::kPeerLost);
        EXPECT_EQ(
            message.find(": its loop ended at step 5") != std::string::npos,
            !taken_back);
      });
    }
  }
}

TEST(runtime_an_announced_failure_reaches_all_ranks_and_sets) {
  ThreadWorld world(3, {"alpha", "beta", "gamma"});
  RunJob(&world, 3, {{0, 1}}, [](int rank, Runtime* runtime) {
    if (rank == 2) {
      runtime->AnnounceFailure("ValueError: no such file");
      auto own = Start(runtime, {"x"}, {Filled(2, 1.0f)});
      EXPECT_EQ(own->Wait().code(), StatusCode::kPeerLost);
      return;
    }
    auto global = Start(runtime, {"x"}, {Filled(2, 1.0f)});
    Status status = global->Wait();
    EXPECT_NE(status.message().find(
                  "rank 2 (gamma) failed: ValueError: no such file"),
              std::string::npos);
    // The job is going to end: sets without that rank fail too.
    Ask pair{"y"};
    pair.set = 1;
    EXPECT_EQ(Start(runtime, pair, {Filled(2, 1.0f)})->Wait().code(),
              StatusCode::kPeerLost);
    EXPECT_TRUE(runtime->first_peer_end()->failed);
    EXPECT_EQ(runtime->first_peer_end()->text, "ValueError: no such file");
  });
}

TEST(runtime_stop_fails_what_is_pending_and_refuses_the_rest) {
  ThreadWorld world(2);
  RunRanks(2, [&](int rank) {
    Runtime runtime(world.Open(rank), Options::Defaults());
    EXPECT_TRUE(runtime.Start({}).ok());
    PendingPtr call;
    if (rank == 0) call = Start(&runtime, {"x"}, {Filled(2, 1.0f)});
    runtime.Stop();
    if (rank == 0) EXPECT_EQ(call->Wait().code(), StatusCode::kPeerLost);
    Status late = Start(&runtime, {"y"}, {Filled(2, 1.0f)})->Wait();
    EXPECT_NE(late.message().find("'y' cannot start: hvd_tf was shut down"),
              std::string::npos);
    runtime.Stop();  // twice is harmless
  });
}

TEST(runtime_sets_work_side_by_side) {
  ThreadWorld world(4, {}, 4096);
  RunJob(&world, 4, {{0, 2}, {3, 1, 0}, {0, 1, 2, 3}},
         [](int rank, Runtime* runtime) {
           EXPECT_EQ(runtime->process_set_count(), 4);
           EXPECT_EQ(runtime->process_set(2)->ranks[1], 1);
           std::vector<int> order = {0, 1, 2, 3};
           if (rank % 2 == 1) std::reverse(order.begin(), order.end());
           std::map<int, PendingPtr> calls;
           for (int set : order) {
             Ask ask{"x"};  // one name, four sets
             ask.set = set;
             calls[set] =
                 Start(runtime, ask, {Filled(9000, static_cast<float>(rank))});
           }
           const std::map<int, float> sums = {{0, 6}, {1, 2}, {2, 4}, {3, 6}};
           for (auto& [set, call] : calls) {
             const bool member = runtime->process_set(set)->rank >= 0;
             Status status = call->Wait();
             EXPECT_EQ(status.ok(), member);
             if (member) {
               EXPECT_TRUE(call->out[0] == Filled(9000, sums.at(set)));
             } else {
               EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
             }
           }
           Ask unknown{"x"};
           unknown.set = 9;
           EXPECT_EQ(Start(runtime, unknown, {Filled(2, 1.0f)})->Wait().code(),
                     StatusCode::kInvalidArgument);
         });
}

TEST(runtime_a_frozen_rank_does_not_stop_the_sets_without_it) {
  ThreadWorld world(3);
  std::vector<std::shared_ptr<Faults>> faults;
  for (int i = 0; i < 3; ++i) faults.push_back(std::make_shared<Faults>());
  std::atomic<int> finished{0};
  RunJob(
      &world, 3, {{0, 1}},
      [&](int rank, Runtime* runtime) {
        auto warm = Start(runtime, {"warm"}, {Filled(2, 1.0f)});
        EXPECT_EQ(warm->Wait().message(), "");
        if (rank == 2) {
          faults[2]->Freeze();
          while (finished < 2) std::this_thread::sleep_for(milliseconds(1));
          faults[2]->Thaw();
        } else {
          while (!runtime->process_set(1)) {
          }
          auto stuck = Start(runtime, {"stuck"}, {Filled(2, 1.0f)});
          for (int i = 0; i < 20; ++i) {
            Ask pair{"pair"};
            pair.set = 1;
            auto call = Start(runtime, pair, {Filled(9000, 1.0f)});
            EXPECT_EQ(call->Wait().message(), "");
            EXPECT_TRUE(call->out[0] == Filled(9000, 2.0f));
          }
          EXPECT_FALSE(stuck->told());
          ++finished;
          // Thawed, it leaves.
          EXPECT_EQ(stuck->Wait().code(), StatusCode::kPeerLost);
        }
      },
      faults);
}

TEST(runtime_slow_ranks_change_no_number) {
  ThreadWorld world(3, {}, 4096);
  std::vector<std::shared_ptr<Faults>> faults;
  for (int i = 0; i < 3; ++i) {
    faults.push_back(std::make_shared<Faults>());
    faults[i]->Delay(std::chrono::microseconds(50 * i));
  }
  RunJob(
      &world, 3, {},
      [](int rank, Runtime* runtime) {
        for (int step = 0; step < 5; ++step) {
          std::vector<PendingPtr> calls;
          for (int t = 0; t < 10; ++t) {
            calls.push_back(Start(runtime, {"t" + std::to_string(t)},
                                  {Filled(3000, 0.1f * (rank + t))}));
          }
          for (int t = 0; t < 10; ++t) {
            EXPECT_EQ(calls[t]->Wait().message(), "");
            // Rank order, bit for bit.
            const float sum = (0.1f * t + 0.1f * (1 + t)) + 0.1f * (2 + t);
            EXPECT_TRUE(calls[t]->out[0] == Filled(3000, sum));
          }
        }
      },
      faults);
}

std::vector<std::string> LinesOf(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// A file that is gone at the end of the test.
struct TemporaryFile {
  TemporaryFile() {
    const int file = mkstemp(path.data());
    EXPECT_TRUE(file >= 0);
    if (file >= 0) close(file);
  }
  ~TemporaryFile() { std::remove(path.c_str()); }
  std::string path = "/tmp/runtime_test.XXXXXX";
};

Options TuningOptions(const std::string& log) {
  Options options = Options::Defaults();
  options.autotune = 1;
  options.autotune_log = log;
  options.autotune_steps_per_sample = 1;
  options.autotune_samples = 12;
  options.fusion_bytes = 65536;
  options.shm_bytes = 65536;
  options.shm_piece_bytes = 4096;
  return options;
}

// Steps until the tuner on rank 0 has settled, and one more.
void TrainUntil(const std::atomic<bool>& settled, int rank, Runtime* runtime) {
  for (int step = 0, left = 2; left > 0; ++step) {
    const float told = rank == 0 && settled ? 1.0f : 0.0f;
    auto flag = Start(runtime, {"settled"}, {{told}});
    std::vector<PendingPtr> calls;
    for (int t = 0; t < 20; ++t) {
      calls.push_back(Start(runtime, {"t" + std::to_string(t)},
                            {Filled(5000, 0.1f * (rank + t + step))}));
    }
    for (int t = 0; t < 20; ++t) {
      EXPECT_EQ(calls[t]->Wait().message(), "");
      // Rank order, bit for bit.
      const int at = t + step;
      const float sum = (0.1f * at + 0.1f * (1 + at)) + 0.1f * (2 + at);
      EXPECT_TRUE(calls[t]->out[0] == Filled(5000, sum));
    }
    ASSERT_EQ(flag->Wait().message(), "");
    if (flag->out[0][0] > 0) --left;
  }
}

TEST(runtime_autotune_changes_pieces_between_batches_and_no_number) {
  for (bool shared : {false, true}) {
    TemporaryFile log;
    std::atomic<bool> settled{false};
    std::string told;
    SetLogSink([&](LogLevel, const std::string& line) {
      if (line.find("autotune has settled") == std::string::npos) return;
      told = line;
      settled = true;
    });
    const Options options = TuningOptions(log.path);
    ThreadWorld world(3, {}, 4096);
    RunRanks(3, [&](int rank) {
      Runtime runtime(
          shared ? world.OpenShared(rank, options, 1) : world.Open(rank),
          options);
      EXPECT_EQ(runtime.Start({{0, 1}}).message(), "");
      TrainUntil(settled, rank, &runtime);
      runtime.Stop();
    });
    SetLogSink(nullptr);
    const std::vector<std::string> lines = LinesOf(log.path);
    ASSERT_TRUE(lines.size() > 3);
    EXPECT_EQ(lines[0],
              "sample,kind,fusion_bytes,piece_bytes,batches_in_flight,steps,"
              "mb_per_s");
    EXPECT_EQ(lines[1].find("1,warmup,65536,4096,4,"), 0u);
    EXPECT_EQ(lines[2].find("2,sample,65536,4096,4,"), 0u);
    EXPECT_EQ(lines[3].find("3,sample,65536,4096,"), std::string::npos);
    EXPECT_NE(lines.back().find(",final,"), std::string::npos);
    const std::string knob =
        shared ? "HVD_SHM_PIECE_BYTES=" : "HVD_PIECE_BYTES=";
    EXPECT_NE(told.find(" HVD_FUSION_BYTES="), std::string::npos);
    EXPECT_NE(told.find(" " + knob), std::string::npos);
    EXPECT_NE(told.find(" HVD_BATCHES_IN_FLIGHT="), std::string::npos);
  }
}

TEST(runtime_autotune_is_not_in_the_way_of_ends_and_aborted_steps) {
  TemporaryFile log;
  const Options options = TuningOptions(log.path);
  for (int leaver : {0, 1}) {  // the one that decides or not
    ThreadWorld world(2);
    RunRanks(2, [&](int rank) {
      Runtime runtime(world.OpenShared(rank, options, 0), options);
      EXPECT_EQ(runtime.Start({}).message(), "");
      for (int step = 1; step <= 60; ++step) {
        Ask ask{"x"};
        ask.step = step;
        Ask other{"y"};
        other.step = step;
        auto first = Start(&runtime, ask, {Filled(9000, 1.0f)});
        auto second = Start(&runtime, other, {Filled(9000, 1.0f)});
        if (step % 10 == 0 && rank == 1) {
          runtime.Cancel(0, second->ticket, Cancelled("out of range"));
        }
        // What had been agreed on when the step was aborted completes.
        for (auto& call : {first, second}) {
          const Status status = call->Wait();
          if (status.ok()) EXPECT_TRUE(call->out[0] == Filled(9000, 2.0f));
          EXPECT_TRUE(status.ok() || step % 10 == 0);
        }
      }
      if (rank != leaver) {
        auto late = Start(&runtime, {"z"}, {Filled(2, 1.0f)});
        EXPECT_EQ(late->Wait().code(), StatusCode::kPeerLost);
      }
      runtime.Stop();
    });
  }
}

TEST(runtime_autotune_has_nothing_to_do_for_one_rank) {
  TemporaryFile log;
  ThreadWorld world(1);
  Runtime runtime(world.Open(0), TuningOptions(log.path));
  EXPECT_EQ(runtime.Start({}).message(), "");
  for (int step = 0; step < 200; ++step) {
    EXPECT_EQ(Start(&runtime, {"x"}, {Filled(90000, 1.0f)})->Wait().message(),
              "");
  }
  runtime.Stop();
  EXPECT_EQ(LinesOf(log.path).size(), 1u);  // the heading
}

TEST(runtime_autotunes_log_that_cannot_be_written_is_refused_on_every_rank) {
  const Options options = TuningOptions("/nowhere/autotune.csv");
  ThreadWorld world(3);
  RunRanks(3, [&](int rank) {
    Runtime runtime(world.Open(rank), options);
    const Status status = runtime.Start({});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(),
              "HVD_AUTOTUNE_LOG='/nowhere/autotune.csv' cannot be written on "
              "rank 0 (No such file or directory): name a file in a directory "
              "that exists and may be written to.");
  });
}

TEST(runtime_a_failing_wire_fails_the_tensor_and_does_not_hang) {
  ThreadWorld world(2, {}, 4096);
  std::vector<std::shared_ptr<Faults>> faults = {std::make_shared<Faults>(),
                                                 std::make_shared<Faults>()};
  RunJob(
      &world, 2, {},
      [&](int rank, Runtime* runtime) {
        auto good = Start(runtime, {"x"}, {Filled(10, 1.0f)});
        EXPECT_EQ(good->Wait().message(), "");
        if (rank == 0) faults[0]->FailMove(3);
        auto bad = Start(runtime, {"x"}, {Filled(90000, 1.0f)});
        EXPECT_FALSE(bad->Wait(milliseconds(10000)).ok());
        EXPECT_TRUE(bad->told());
      },
      faults);
}

TEST(runtime_a_rank_that_cannot_send_messages_fails_and_does_not_hang) {
  for (int mute : {0, 1}) {
    ThreadWorld world(2);
    std::vector<std::shared_ptr<Faults>> faults = {std::make_shared<Faults>(),
                                                   std::make_shared<Faults>()};
    std::promise<void> seen;
    std::shared_future<void> over = seen.get_future().share();
    RunJob(
        &world, 2, {},
        [&](int rank, Runtime* runtime) {
          auto good = Start(runtime, {"x"}, {Filled(10, 1.0f)});
          EXPECT_EQ(good->Wait().message(), "");
          if (rank == mute) faults[rank]->FailMessage(1);
          auto bad = Start(runtime, {"y"}, {Filled(10, 1.0f)});
          if (rank == mute) {
            const Status status = bad->Wait(milliseconds(10000));
            EXPECT_EQ(status.code(), StatusCode::kPeerLost);
            EXPECT_NE(status.message().find("made to fail"), std::string::npos);
            seen.set_value();
          } else {
            over.wait();  // the peer is told by the launcher
          }
        },
        faults);
  }
}

TEST(runtime_a_job_follows_a_job) {
  for (int i = 0; i < 20; ++i) {
    RunJob(2, [](int, Runtime* runtime) {
      auto call = Start(runtime, {"x"}, {Filled(2, 1.0f)});
      EXPECT_EQ(call->Wait().message(), "");
    });
  }
}

TEST(runtime_bad_process_sets_are_refused) {
  struct Case {
    std::vector<int> ranks;
    const char* text;
  };
  for (const Case& c : {Case{{}, "has no ranks"}, Case{{0, 0}, "twice"},
                        Case{{0, 2}, "rank 2"}, Case{{-1}, "rank -1"}}) {
    ThreadWorld world(1);
    Runtime runtime(world.Open(0), Options::Defaults());
    Status status = runtime.Start({c.ranks});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(c.text), std::string::npos);
  }
}

}  // namespace
}  // namespace hvd
