// SPDX-License-Identifier: Apache-2.0
// Process sets that are added and removed in whole jobs: what they can do, and
// how calls fail.
#include "runtime_sets.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "harness.h"
#include "rounds.h"
#include "runtime_calls.h"
#include "thread_world.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

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
    EXPECT_EQ(runtime->process_sets()->size(), 2u);
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
    EXPECT_EQ(runtime->process_sets()->size(), 2u);
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
        EXPECT_EQ(runtime->process_sets()->size(), 3u);
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
      if (rank == 0) EXPECT_FALSE(stuck->told());
      EXPECT_EQ(runtime->RemoveProcessSet(2).message(), "");
    }
    if (rank == 1) stuck = Sum(runtime, 1, "stuck", 10, 1);
    if (rank < 2) ExpectSum(stuck, 10, 2);
  });
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

TEST(sets_a_rank_that_does_not_ask_is_named) {
  Options options = Dynamic();
  options.stall_warning_s = 0.4;
  options.stall_shutdown_s = 0.9;
  PlayUntilOnTime(options.stall_warning_s / 4, [&] {
    const auto faults = NewFaults(3);
    Lateness lateness(3);
    std::atomic<int> failed{0};
    RunByMailboxes(
        3, {},
        [&](int rank, Runtime* runtime) {
          lateness.Begin();
          if (rank == 1) {
            while (failed < 2) std::this_thread::sleep_for(milliseconds(5));
            return;
          }
          // A rank that asks late is the one that others wait for.
          lateness.NoteBegun();
          ExpectText(runtime->AddProcessSet({0, 1}).status(),
                     StatusCode::kPeerLost,
                     "rank 1 (localhost) failed: for 1 s it has not asked for "
                     "'add_process_set([0, 1])'");
          ++failed;
        },
        faults, options);
    return std::max(lateness.most_s(), LongestPause_s(faults));
  });
}

}  // namespace
}  // namespace hvd
