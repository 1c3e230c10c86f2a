// SPDX-License-Identifier: Apache-2.0
// Joins: ranks without tensors take part in the others' calls until all have
// joined.
#include "runtime_join.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "harness.h"
#include "random_calls.h"
#include "run_ranks.h"
#include "runtime_calls.h"
#include "runtime_jobs.h"
#include "thread_world.h"

namespace hvd {
namespace {

// Rank r has 3 * r + 2 tensors of each kind. Sums and gathered rows are those
// of the ranks that still have some.
void GoesOnWithoutThem(Runtime* runtime, int rank, int size) {
  for (int turn = 0; turn < 2; ++turn) {
    const int mine = 3 * rank + 2;
    for (int i = 0; i < mine; ++i) {
      const std::string number = std::to_string(i);
      const auto value = static_cast<float>(rank + 1);
      std::vector<PendingPtr> calls = {
          Start(runtime, {"sum" + number}, {Filled(300, value)}),
          Start(runtime, {"max" + number, Verb::kAllreduce, ReduceOp::kMax},
                {Filled(5, -value)}),
          Start(runtime, {"rows" + number, Verb::kAllgather},
                {Filled(static_cast<size_t>(rank % 3), value)}),
          Start(runtime,
                {"average" + number, Verb::kAllreduce, ReduceOp::kAverage},
                {Filled(7, value)}),
      };
      for (const PendingPtr& call : calls) {
        EXPECT_EQ(call->Wait().message(), "");
      }
      float sum = 0;
      int rows = 0, first = size;
      for (int peer = 0; peer < size; ++peer) {
        if (i >= 3 * peer + 2) continue;
        sum += static_cast<float>(peer + 1);
        rows += peer % 3;
        first = std::min(first, peer);
      }
      EXPECT_TRUE(calls[0]->out[0] == Filled(300, sum));
      EXPECT_TRUE(calls[1]->out[0] ==
                  Filled(5, -static_cast<float>(first + 1)));
      EXPECT_EQ(calls[2]->out[0].size(), static_cast<size_t>(rows));
      EXPECT_TRUE(calls[3]->out[0] ==
                  Filled(7, sum / static_cast<float>(size)));
    }
    // The one with the most joins last.
    EXPECT_EQ(Join(runtime), size - 1);
  }
}

TEST(join_goes_on_without_ranks_that_have_no_more) {
  for (int size : {1, 2, 3, 5}) RunJoins(size, GoesOnWithoutThem);
}

TEST(join_may_divide_by_the_ranks_that_are_active) {
  Options options = Options::Defaults();
  options.join_average = JoinAverage::kActive;
  RunJoins(
      3,
      [](Runtime* runtime, int rank, int) {
        if (rank > 0) {
          const auto call =
              Start(runtime, {"x", Verb::kAllreduce, ReduceOp::kAverage},
                    {Filled(9, static_cast<float>(rank))});
          EXPECT_EQ(call->Wait().message(), "");
          EXPECT_TRUE(call->out[0] == Filled(9, 1.5f));
        }
        Join(runtime);
      },
      options);
}

TEST(join_decides_on_what_waits_already) {
  RunJoins(3, [](Runtime* runtime, int rank, int) {
    PendingPtr call;
    if (rank < 2) call = Start(runtime, {"x"}, {Filled(4, 1.0f)});
    if (rank == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    if (call != nullptr) {
      EXPECT_EQ(call->Wait().message(), "");
      EXPECT_TRUE(call->out[0] == Filled(4, 2.0f));
    }
    Join(runtime);
  });
}

TEST(join_can_be_taken_back) {
  RunJoins(3,
           [](Runtime* runtime, int rank, int size) {
             for (int turn = 0; turn < 20; ++turn) {
               if (rank == 1) JoinAndTakeBack(runtime, turn);
               // Rank 0, which leads, hears of this after it has heard of that.
               if (rank < 2) {
                 Ask ask{"heard"};
                 ask.set = 1;
                 EXPECT_EQ(
                     Start(runtime, ask, {Filled(1, 1.0f)})->Wait().message(),
                     "");
               }
               const auto call = Start(runtime, {"x"}, {Filled(4, 1.0f)});
               EXPECT_EQ(call->Wait().message(), "");
               EXPECT_TRUE(call->out[0] == Filled(4, static_cast<float>(size)));
               Join(runtime);
             }
           },
           Options::Defaults(), {{0, 1}});
}

TEST(join_may_be_taken_back_too_late) {
  RunJoins(3, [](Runtime* runtime, int rank, int size) {
    for (int turn = 0; turn < 20; ++turn) {
      if (rank == 1) {
        JoinUnderWay join(runtime);
        if (turn % 2 == 0) std::this_thread::yield();
        join.Cancel();
        const Status status = join.Wait().status;
        // Too late: all have joined, and this turn is over.
        if (status.ok()) continue;
        // Or it was too late unheard. Then the others are a turn ahead from now
        // on, and end before this rank.
        if (status.code() == StatusCode::kPeerLost) return;
        EXPECT_EQ(status.code(), StatusCode::kCancelled);
      }
      // With or without rank 1's, by when it was heard of; never a hang.
      const auto call =
          Start(runtime, {"x" + std::to_string(turn)}, {Filled(4, 1.0f)});
      if (rank == 1) {
        // It may have been agreed on without this rank's.
        JoinUnderWay join(runtime);
        const Status status = call->Wait();
        const Status joined = join.Wait().status;
        if (joined.code() == StatusCode::kPeerLost) return;
        EXPECT_EQ(status.message(), "");
        EXPECT_EQ(joined.message(), "");
      } else {
        EXPECT_EQ(call->Wait().message(), "");
        EXPECT_TRUE(call->out[0][0] >= static_cast<float>(size - 1));
        Join(runtime);
      }
    }
  });
}

TEST(join_refuses_what_would_be_lost) {
  RunJoins(3, [](Runtime* runtime, int rank, int) {
    if (rank != 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const auto from_joined =
          Start(runtime, {"b", Verb::kBroadcast, ReduceOp::kSum, 2},
                {Filled(3, 1.0f)});
      const Status status = from_joined->Wait();
      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
      EXPECT_TRUE(status.message().find("'b' needs rank 2, which has called") !=
                  std::string::npos);
      const auto scatter =
          Start(runtime, {"s", Verb::kReducescatter}, {Filled(3, 1.0f)});
      EXPECT_EQ(scatter->Wait().code(), StatusCode::kFailedPrecondition);
      const auto from_active =
          Start(runtime, {"c", Verb::kBroadcast, ReduceOp::kSum, 0},
                {Filled(3, static_cast<float>(rank + 7))});
      EXPECT_EQ(from_active->Wait().message(), "");
      EXPECT_TRUE(from_active->out[0] == Filled(3, 7.0f));
    }
    Join(runtime);
  });
}

TEST(join_is_called_once_at_a_time) {
  std::atomic<bool> is_refused{false};
  RunJoins(2, [&](Runtime* runtime, int rank, int) {
    // In each of the jobs the first one waits for rank 1 until then.
    while (rank == 1 && !is_refused.exchange(false)) std::this_thread::yield();
    JoinUnderWay first(runtime);
    if (rank == 0) {
      JoinUnderWay second(runtime);
      EXPECT_EQ(second.Wait().status.code(), StatusCode::kInvalidArgument);
      is_refused = true;
    }
    EXPECT_EQ(first.Wait().status.message(), "");
  });
}

TEST(join_of_a_set_of_some_ranks) {
  RunJoins(4,
           [](Runtime* runtime, int rank, int) {
             if (rank % 2 != 0) return;
             if (rank == 0) {
               Ask ask{"x"};
               ask.set = 1;
               const auto call = Start(runtime, ask, {Filled(6, 3.0f)});
               EXPECT_EQ(call->Wait().message(), "");
               EXPECT_TRUE(call->out[0] == Filled(6, 3.0f));
             }
             const JoinResult result = JoinUnderWay(runtime, 1).Wait();
             EXPECT_EQ(result.status.message(), "");
             EXPECT_EQ(result.last_rank, 0);
           },
           Options::Defaults(), {{0, 2}});
}

TEST(a_join_ends_with_the_job) {
  RunJoins(2, [](Runtime* runtime, int rank, int) {
    if (rank == 1) return;  // it leaves
    const JoinResult result = JoinUnderWay(runtime).Wait();
    EXPECT_EQ(result.status.code(), StatusCode::kPeerLost);
  });
}

// New names, small caches and every verb that goes on, in a random order.
void RandomCallsWithout(Runtime* runtime, int rank, int size) {
  const std::vector<ProcessSet> sets = {*runtime->process_set(0)};
  for (uint64_t round = 0; round < 6; ++round) {
    Random random(round);
    const int calls = 30;
    // Ranks leave at calls of their own. The last one stays.
    std::vector<int64_t> ends;
    for (int peer = 0; peer < size; ++peer) {
      ends.push_back(Below(random, calls));
    }
    ends[static_cast<size_t>(round) % ends.size()] = calls;
    for (int i = 0; i < calls; ++i) {
      const std::string name =
          "call" + std::to_string(random() % 4 == 0 ? i + 100 * round : i);
      RandomCall call = DrawCall(random, name, sets);
      if (i >= ends[static_cast<size_t>(rank)]) continue;
      std::vector<int> absent;
      for (int peer = 0; peer < size; ++peer) {
        if (i >= ends[static_cast<size_t>(peer)]) absent.push_back(peer);
      }
      CallWithout(std::move(absent), &call);
      CallBuffers buffers(call, sets[0], round);
      auto pending = std::make_shared<Pending>();
      buffers.Describe(&pending->entry);
      pending->entry.request.key.name = call.name;
      pending->entry.ticket = runtime->NewTicket();
      pending->entry.done = [raw = pending.get()](const Status& status) {
        raw->Finish(status);
      };
      runtime->Enqueue(0, EntryPtr(pending, &pending->entry));
      EXPECT_EQ(pending->Wait().message(), "");
      buffers.Check("rank " + std::to_string(rank));
    }
    Join(runtime);
  }
}

TEST(join_amid_random_calls) {
  Options options = Options::Defaults();
  for (int64_t entries : {4096, 3, 0}) {
    options.cache_entries = entries;
    RunJoins(4, RandomCallsWithout, options);
  }
}

}  // namespace
}  // namespace hvd
