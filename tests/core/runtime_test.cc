// SPDX-License-Identifier: Apache-2.0
// Runtime: whole jobs with ranks as threads, from Enqueue to done.
#include "core/runtime.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>

#include "faults.h"
#include "harness.h"
#include "runtime_calls.h"
#include "runtime_jobs.h"
#include "thread_world.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

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

#ifdef __linux__
// A crash must reach the handler that writes a trace. A blocked one ends the
// process without. Other signals are for the process's own threads.
TEST(runtime_the_background_thread_takes_the_signals_of_its_own_faults) {
  RunJob(2, [](int, Runtime* runtime) {
    sigset_t blocked;
    sigemptyset(&blocked);
    char thread[16] = "";
    auto call = std::make_shared<Pending>();
    call->in = call->out = {Filled(2, 1.0f)};
    Entry& entry = call->entry;
    entry.request.key.name = "x";
    entry.request.signature.shapes = {{2}};
    entry.inputs = {call->in[0].data()};
    entry.outputs = {call->out[0].data()};
    entry.done = [&, raw = call.get()](const Status& status) {
      pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
      pthread_getname_np(pthread_self(), thread, sizeof(thread));
      raw->Finish(status);
    };
    runtime->Enqueue(0, EntryPtr(call, &entry));
    EXPECT_EQ(call->Wait().message(), "");
    EXPECT_EQ(std::string(thread), "hvd_tf");  // the background one
    for (int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP}) {
      EXPECT_EQ(sigismember(&blocked, fault), 0);
    }
    for (int other : {SIGINT, SIGTERM, SIGUSR1, SIGALRM, SIGCHLD}) {
      EXPECT_EQ(sigismember(&blocked, other), 1);
    }
  });
}
#endif

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

TEST(runtime_sets_work_side_by_side) {
  ThreadWorld world(4, {}, 4096);
  RunJob(&world, 4, {{0, 2}, {3, 1, 0}, {0, 1, 2, 3}},
         [](int rank, Runtime* runtime) {
           EXPECT_EQ(runtime->process_sets()->size(), 4u);
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
