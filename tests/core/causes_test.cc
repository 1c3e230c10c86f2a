// SPDX-License-Identifier: Apache-2.0
// Causes: each failure says by a kind, a rank and a tensor what lies behind it,
// whatever its words are.
#include <atomic>
#include <cmath>
#include <optional>
#include <string>
#include <thread>

#include "core/options.h"
#include "harness.h"
#include "negotiator_world.h"
#include "rounds.h"
#include "run_ranks.h"
#include "runtime_calls.h"
#include "runtime_jobs.h"
#include "thread_world.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

// Words that say nothing, or the wrong thing, instead of the usual ones.
const char* const kOtherWords[] = {
    "", "rank 7 failed: x",
    "'y' will not come from rank 9: aborted its step: ", "\xff\n\t"};

void ExpectCause(const Status& status, CauseKind kind, int rank,
                 const std::string& tensor) {
  EXPECT_FALSE(status.ok());
  ASSERT_TRUE(status.cause() != nullptr);
  EXPECT_EQ(status.cause()->kind, kind);
  EXPECT_EQ(status.cause()->rank, rank);
  EXPECT_EQ(status.cause()->tensor, tensor);
}

void ExpectCause(World* world, int rank, const std::string& name,
                 CauseKind kind, int of_rank, const std::string& tensor) {
  const std::vector<Status> results = world->Results(rank, name);
  ASSERT_EQ(results.size(), 1u);
  ExpectCause(results[0], kind, of_rank, tensor);
}

TEST(causes_of_an_aborted_step) {
  for (const char* words : kOtherWords) {
    World world(3);
    const uint64_t ticket = world.Submit(1, "x", 21);
    world.Submit(0, "x", 11);
    world.Submit(0, "y", 11);
    world.Submit(2, "y", 31);
    world.Deliver();
    world.at(1).Cancel(ticket, Cancelled(words));
    world.Deliver();
    world.Submit(2, "x", 31);
    world.Deliver();
    for (const char* name : {"x", "y"}) {
      ExpectCause(&world, 0, name, CauseKind::kStepAborted, 1, "x");
      ExpectCause(&world, 2, name, CauseKind::kStepAborted, 1, "x");
    }
    // A rank knows why its own step was aborted.
    EXPECT_TRUE(world.Results(1, "x")[0].cause() == nullptr);
  }
}

TEST(causes_of_ended_scopes) {
  for (const char* words : kOtherWords) {
    if (words[0] == '\0') continue;  // takes an end back
    World world(2);
    world.Submit(0, "gradient/a", 7);
    world.Submit(0, "gradient/b");
    world.Deliver();
    world.at(1).EndScope("gradient/", words);
    world.Deliver();
    world.Submit(0, "gradient/c");
    world.Deliver();
    for (const char* name : {"gradient/a", "gradient/b", "gradient/c"}) {
      ExpectCause(&world, 0, name, CauseKind::kScopeEnded, 1, name);
    }
  }
}

TEST(causes_of_calls_that_fail) {
  for (const char* words : kOtherWords) {
    World world(3);
    for (int rank = 0; rank < 3; ++rank) world.Submit(rank, "x", rank + 1);
    Signature other = World::Plain();
    other.shapes = {{5}};
    for (int rank = 0; rank < 3; ++rank) {
      world.Submit(rank, "differs", 0, rank == 1 ? other : World::Plain());
      world.Submit(rank, "bad", rank + 11, World::Plain(), 0,
                   rank == 2 ? InvalidArgument(words) : Status::Ok());
    }
    // It belongs to the same step as the bad call.
    world.Submit(0, "later", 11);
    world.Deliver();
    for (int rank = 0; rank < 3; ++rank) {
      ExpectCause(&world, rank, "differs", CauseKind::kRanksDiffer, -1,
                  "differs");
    }
    for (int rank : {0, 1}) {
      ExpectCause(&world, rank, "bad", CauseKind::kCallFailed, 2, "bad");
    }
    ExpectCause(&world, 0, "later", CauseKind::kCallFailed, 2, "bad");
    EXPECT_TRUE(world.Results(2, "bad")[0].cause() == nullptr);
  }
}

// What waits for an aborted step fails with the failure that aborted it, so it
// does not matter which of the two a rank hears of first. Nothing but rank 1's
// aborted step can fail "early", and nothing but rank 2's can fail "late".
TEST(causes_of_a_failure_that_aborts_a_step) {
  Options options = Options::Defaults();
  options.check_numerics = true;
  ThreadWorld world(3);
  RunRanks(3, [&](int rank) {
    Runtime runtime(world.Open(rank), options);
    EXPECT_EQ(runtime.Start({}).message(), "");
    const auto call = [&](const char* name, int64_t step, float value = 1) {
      Ask ask{name};
      ask.step = step;
      return Start(&runtime, ask, {Filled(2, value)});
    };
    const auto expect_failure = [](const Status& status) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(status.message(),
                "rank 1 has a NaN or an infinity in 'x'; HVD_CHECK_NUMERICS=1 "
                "makes this an error.");
      ExpectCause(status, CauseKind::kNotFinite, 1, "x");
    };
    const float bad = rank == 1 ? std::nanf("") : 1;
    // The rank whose value is bad has not asked for the other call yet.
    PendingPtr other = rank == 1 ? nullptr : call("early", 1);
    Status why = call("x", 1, bad)->Wait();
    expect_failure(why);
    if (rank == 1) {
      runtime.AbortStep(*runtime.process_set(0), {"early", 0}, 1, why);
    } else {
      expect_failure(other->Wait());
    }
    // A rank that has met the failure on the wire waits in the other call.
    other = rank == 0 ? nullptr : call("late", 2);
    why = call("x", 2, bad)->Wait();
    expect_failure(why);
    if (rank == 2) runtime.Cancel(0, other->ticket, why);
    if (rank != 0) expect_failure(other->Wait());
    EXPECT_EQ(call("end", 3)->Wait().message(), "");
    runtime.Stop();
  });
}

// The cause of what is pending on rank 0, and of what it asks for later, when
// rank 1 has done that.
void ExpectEnd(const std::function<void(Runtime*)>& end, CauseKind kind) {
  RunJob(3, [&](int rank, Runtime* runtime) {
    auto call = Start(runtime, {"all"}, {Filled(2, 1.0f)});
    EXPECT_EQ(call->Wait().message(), "");
    if (rank == 1) return end(runtime);
    ExpectCause(Start(runtime, {"x"}, {Filled(2, 1.0f)})->Wait(), kind, 1, "");
    ExpectCause(Start(runtime, {"y"}, {Filled(2, 1.0f)})->Wait(), kind, 1, "");
  });
}

TEST(causes_of_ranks_that_end) {
  for (const char* words : kOtherWords) {
    ExpectEnd([=](Runtime* runtime) { runtime->AnnounceFailure(words); },
              CauseKind::kRankFailed);
  }
  ExpectEnd([](Runtime* runtime) { runtime->Stop(); }, CauseKind::kRankLeft);
  ExpectEnd([](Runtime* runtime) { runtime->Stop(true); },
            CauseKind::kRankRestarts);
}

// Their messages may cross. At least one of them knows of the other, and ends
// the job.
TEST(causes_a_rank_that_restarts_and_one_that_leaves_do_not_miss_each_other) {
  for (const int leaver : {0, 1}) {
    std::atomic<int> knowing{0};
    ThreadWorld world(2);
    RunJob(&world, 2, {}, [&](int rank, Runtime* runtime) {
      EXPECT_EQ(Start(runtime, {"all"}, {Filled(2, 1.0f)})->Wait().message(),
                "");
      runtime->Stop(rank != leaver);
      if (rank == leaver) {
        if (runtime->restarting_peer() == 1 - leaver) ++knowing;
        return;
      }
      EXPECT_EQ(runtime->restarting_peer(), -1);
      const std::optional<PeerEnd> end = runtime->first_peer_end();
      if (end.has_value() && !end->restarts) ++knowing;
    });
    EXPECT_TRUE(knowing > 0);
  }
}

// All but the last restart, which hears of it. It has left for good, which
// says more to the others than that their neighbours restart.
TEST(causes_one_that_leaves_says_more_than_many_that_restart) {
  RunJob(4, [&](int rank, Runtime* runtime) {
    EXPECT_EQ(Start(runtime, {"all"}, {Filled(2, 1.0f)})->Wait().message(), "");
    if (rank == 3) {
      runtime->Stop();
      return;
    }
    (void)Start(runtime, {"x"}, {Filled(2, 1.0f)})->Wait();
    runtime->Stop(true);
    ASSERT_TRUE(runtime->first_peer_end().has_value());
    EXPECT_EQ(runtime->first_peer_end()->rank, 3);
    EXPECT_FALSE(runtime->first_peer_end()->restarts);
    EXPECT_EQ(CauseOf(*runtime->first_peer_end()).kind, CauseKind::kRankLeft);
  });
}

TEST(causes_of_ranks_that_are_given_up) {
  Options options = Options::Defaults();
  options.stall_warning_s = 0;
  options.stall_shutdown_s = 0.4;
  PlayUntilOnTime(options.stall_shutdown_s / 4, [&] {
    const auto faults = NewFaults(3);
    ThreadWorld world(3);
    Lateness lateness(3);
    std::atomic<int> failed{0};
    RunRanks(3, [&](int rank) {
      Runtime runtime(world.Open(rank, faults[rank]), options);
      EXPECT_EQ(runtime.Start({}).message(), "");
      lateness.Begin();
      if (rank != 2) {
        const auto call = Start(&runtime, {"x"}, {Filled(2, 1.0f)});
        lateness.NoteBegun();  // else it is missed itself
        ExpectCause(call->Wait(), CauseKind::kRankGivenUp, 2, "");
        ++failed;
      }
      while (failed < 2) std::this_thread::sleep_for(milliseconds(1));
      runtime.Stop();
    });
    return std::max(lateness.most_s(), LongestPause_s(faults));
  });
}

TEST(causes_survive_other_words) {
  const Status status = PeerLost("a", {CauseKind::kRankGivenUp, 4, "t"});
  for (const char* words : kOtherWords) {
    const Status reworded = status.Reworded(words);
    EXPECT_EQ(reworded.message(), words);
    EXPECT_EQ(reworded.code(), StatusCode::kPeerLost);
    ExpectCause(reworded, CauseKind::kRankGivenUp, 4, "t");
  }
}

}  // namespace
}  // namespace hvd
