// SPDX-License-Identifier: Apache-2.0
// Runtime: whole jobs whose calls, ranks or wires fail, with ranks as threads.
#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "core/runtime.h"
#include "faults.h"
#include "harness.h"
#include "run_ranks.h"
#include "runtime_calls.h"
#include "runtime_jobs.h"
#include "thread_world.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

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

TEST(runtime_an_aborted_step_fails_who_asks_after_it) {
  RunJob(2, [&](int rank, Runtime* runtime) {
    Ask ask{"x"};
    ask.step = 10 + rank;
    if (rank == 1) {
      auto call = Start(runtime, ask, {Filled(2, 1.0f)});
      runtime->Cancel(0, call->ticket, Cancelled("NaN in 'loss'"));
      EXPECT_EQ(call->Wait().code(), StatusCode::kCancelled);
    }
    // Rank 1's part in it comes to the leader behind the word of the abort.
    auto meeting = Start(runtime, {"meeting"}, {Filled(2, 1.0f)});
    EXPECT_EQ(meeting->Wait().message(), "");
    if (rank == 0) {
      auto call = Start(runtime, ask, {Filled(2, 1.0f)});
      Status status = call->Wait();
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

TEST(runtime_no_memory_for_an_output_fails_that_call_only) {
  RunJob(2, [](int rank, Runtime* runtime) {
    // An allgather allocates its outputs on the background thread.
    auto call = std::make_shared<Pending>();
    call->in = {Filled(3, 1.0f)};
    Entry& entry = call->entry;
    entry.request.key.name = "x";
    entry.request.signature.verb = Verb::kAllgather;
    entry.request.signature.shapes = {{3}};
    entry.inputs = {call->in[0].data()};
    entry.allocate = [rank, raw = call.get()](const std::vector<Shape>& shapes,
                                              RankCountsSpan,
                                              std::vector<void*>* outputs) {
      if (rank == 1) throw std::bad_alloc();
      raw->out.emplace_back(shapes[0][0]);
      outputs->push_back(raw->out[0].data());
      return Status::Ok();
    };
    entry.done = [raw = call.get()](const Status& status) {
      raw->Finish(status);
    };
    runtime->Enqueue(0, EntryPtr(call, &entry));
    const Status status = call->Wait();
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_NE(status.message().find("no memory for the result"),
              std::string::npos);
    auto next = Start(runtime, {"y"}, {Filled(2, 1.0f)});
    EXPECT_EQ(next->Wait().message(), "");
  });
}

TEST(runtime_a_background_thread_without_memory_ends_its_rank_by_name) {
  RunJob(2, [](int rank, Runtime* runtime) {
    auto waits = Start(runtime, {rank == 0 ? "a" : "b"}, {Filled(2, 1.0f)});
    auto call = std::make_shared<Pending>();
    call->in = {Filled(3, 1.0f)};
    call->out = {Filled(3, 0.0f)};
    Entry& entry = call->entry;
    entry.request.key.name = "x";
    entry.request.signature.shapes = {{3}};
    entry.inputs = {call->in[0].data()};
    entry.outputs = {call->out[0].data()};
    entry.done = [rank, raw = call.get()](const Status& status) {
      raw->Finish(status);
      if (rank == 1) throw std::bad_alloc();
    };
    runtime->Enqueue(0, EntryPtr(call, &entry));
    const Status first = call->Wait();
    // The end of rank 1 may reach rank 0 before its own last move.
    if (rank == 1 || first.code() != StatusCode::kPeerLost) {
      EXPECT_EQ(first.message(), "");
    }
    const Status status = waits->Wait(milliseconds(5000));
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    EXPECT_NE(status.message().find("ran out of memory"), std::string::npos);
    if (rank == 1) return;
    EXPECT_NE(status.message().find("rank 1"), std::string::npos);
    ASSERT_TRUE(status.cause() != nullptr);
    EXPECT_EQ(status.cause()->kind, CauseKind::kRankFailed);
  });
}

TEST(runtime_what_is_on_the_wire_is_cancelled_beside_a_frozen_rank) {
  constexpr int64_t kStep = 7;
  ThreadWorld world(2, {}, 4096);
  std::vector<std::shared_ptr<Faults>> faults;
  for (int i = 0; i < 2; ++i) faults.push_back(std::make_shared<Faults>());
  std::promise<void> told;
  RunJob(
      &world, 2, {},
      [&](int rank, Runtime* runtime) {
        auto warm = Start(runtime, {"warm"}, {Filled(2, 1.0f)});
        EXPECT_EQ(warm->Wait().message(), "");
        // All have agreed on it when rank 1 stops.
        if (rank == 1) faults[1]->FreezeAtMove(3);
        Ask ask{"big"};
        ask.step = kStep;
        auto big = Start(runtime, ask, {Filled(50000, 1.0f)});
        if (rank == 1) {
          told.get_future().wait();
          faults[1]->Thaw();
          // It has lost its step to rank 0.
          const Status status = big->Wait();
          EXPECT_EQ(status.code(), StatusCode::kPeerLost);
          ASSERT_TRUE(status.cause() != nullptr);
          EXPECT_EQ(status.cause()->kind, CauseKind::kStepAborted);
          EXPECT_EQ(status.cause()->rank, 0);
        } else {
          EXPECT_TRUE(faults[1]->WaitUntilFrozen());
          EXPECT_FALSE(big->told());
          runtime->Cancel(0, big->ticket, Cancelled("the session's timeout"));
          const Status status = big->Wait();
          EXPECT_EQ(status.message(), "the session's timeout");
          // The caller's memory is its own again.
          std::fill(big->out[0].begin(), big->out[0].end(), 77.0f);
          std::vector<Floats>().swap(big->in);
          told.set_value();
        }
        // Both go on.
        ask.step = kStep + 1;
        auto next = Start(runtime, ask, {Filled(50000, 1.0f)});
        EXPECT_EQ(next->Wait().message(), "");
        EXPECT_TRUE(next->out[0] == Filled(50000, 2.0f));
        if (rank == 0) EXPECT_TRUE(big->out[0] == Filled(50000, 77.0f));
      },
      faults);
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

}  // namespace
}  // namespace hvd
