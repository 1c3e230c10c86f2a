// SPDX-License-Identifier: Apache-2.0
// Whole jobs on several hosts, whose first ranks gather reports: what happens
// when one of these is slow, stops for a while, leaves or fails.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "faults.h"
#include "harness.h"
#include "runtime_calls.h"
#include "runtime_jobs.h"
#include "thread_world.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

// Ranks 0, 3, 4 | 1, 2, 5. Gatherers: 0 and 1.
const std::vector<std::string> kHosts = {"a", "b", "b", "a", "a", "b"};
constexpr int kSize = 6;

std::vector<std::shared_ptr<Faults>> NoFaults() {
  std::vector<std::shared_ptr<Faults>> faults;
  for (int i = 0; i < kSize; ++i) faults.push_back(std::make_shared<Faults>());
  return faults;
}

// One tensor of a step. All ranks do as many.
void Step(Runtime* runtime, int rank, int step) {
  auto call = Start(runtime, {"x"}, {Filled(50, 1.0f * rank + step)});
  EXPECT_EQ(call->Wait().message(), "");
  EXPECT_TRUE(call->out[0] == Filled(50, 15.0f + kSize * step));
}

TEST(runtime_hosts_slow_and_stopped_gatherers_change_no_number) {
  for (const int slow : {0, 1}) {
    ThreadWorld world(kSize, kHosts);
    const auto faults = NoFaults();
    faults[slow]->Delay(std::chrono::microseconds(300));
    RunJob(
        &world, kSize, {},
        [&](int rank, Runtime* runtime) {
          for (int step = 0; step < 20; ++step) {
            // As a SIGSTOP and a SIGCONT would.
            const bool stops = rank == 4 && step % 5 == 2;
            if (stops) faults[slow]->Freeze();
            std::thread later;
            if (stops) {
              later = std::thread([&] {
                std::this_thread::sleep_for(milliseconds(30));
                faults[slow]->Thaw();
              });
            }
            Step(runtime, rank, step);
            if (stops) later.join();
          }
        },
        faults);
  }
}

// Its neighbours have the log through it. They may be behind it by all of it.
TEST(runtime_hosts_what_a_gatherer_took_part_in_completes_on_its_neighbours) {
  for (const int leaver : {0, 1, 2}) {
    for (int round = 0; round < 5; ++round) {
      ThreadWorld world(kSize, kHosts);
      const auto faults = NoFaults();
      if (round > 0) faults[5]->Delay(std::chrono::microseconds(500 * round));
      RunJob(
          &world, kSize, {},
          [&](int rank, Runtime* runtime) {
            for (int step = 0; step < 4; ++step) Step(runtime, rank, step);
            if (rank == leaver) return;
            auto more = Start(runtime, {"more"}, {Filled(3, 1.0f)});
            const Status status = more->Wait();
            EXPECT_EQ(status.code(), StatusCode::kPeerLost);
            EXPECT_NE(status.message().find("has left"), std::string::npos);
          },
          faults);
    }
  }
}

TEST(runtime_hosts_a_failure_of_any_rank_reaches_all) {
  for (int failing = 0; failing < kSize; ++failing) {
    ThreadWorld world(kSize, kHosts);
    RunJob(&world, kSize, {}, [&](int rank, Runtime* runtime) {
      Step(runtime, rank, 0);
      if (rank == failing) {
        runtime->AnnounceFailure("ValueError: no such file");
      }
      auto call = Start(runtime, {"y"}, {Filled(3, 1.0f)});
      const Status status = call->Wait();
      EXPECT_EQ(status.code(), StatusCode::kPeerLost);
      if (rank == failing) return;
      EXPECT_NE(status.message().find("rank " + std::to_string(failing)),
                std::string::npos);
      EXPECT_NE(status.message().find("ValueError: no such file"),
                std::string::npos);
    });
  }
}

// Rank 1 would tell ranks 2 and 5.
TEST(runtime_hosts_a_failure_reaches_the_neighbours_of_a_stopped_gatherer) {
  ThreadWorld world(kSize, kHosts);
  const auto faults = NoFaults();
  std::atomic<int> heard{0};
  RunJob(
      &world, kSize, {},
      [&](int rank, Runtime* runtime) {
        Step(runtime, rank, 0);
        if (rank == 1) {
          faults[1]->Freeze();
          while (heard < 3) std::this_thread::sleep_for(milliseconds(1));
          faults[1]->Thaw();
          return;
        }
        auto call = Start(runtime, {"y"}, {Filled(3, 1.0f)});
        if (rank == 0) {
          EXPECT_TRUE(faults[1]->WaitUntilFrozen());
          runtime->AnnounceFailure("ValueError: no such file");
        }
        // Rank 1 stands still until its neighbours have waited.
        const Status status = call->Wait();
        EXPECT_EQ(status.code(), StatusCode::kPeerLost);
        if (rank == 2 || rank == 5 || rank == 4) ++heard;
      },
      faults);
}

// Only some of a host have asked, and their neighbours do not before these have
// failed. Nothing but the time passes it on.
TEST(runtime_hosts_an_aborted_step_fails_what_is_held_elsewhere) {
  ThreadWorld world(kSize, kHosts);
  std::atomic<int> asked{0}, failed{0};
  RunJob(&world, kSize, {}, [&](int rank, Runtime* runtime) {
    for (int step = 0; step < 2; ++step) Step(runtime, rank, step);
    Ask ask{"x"};
    ask.step = 100 + rank;
    const bool comes_late = rank >= 4;
    while (comes_late && failed < 4) std::this_thread::yield();
    auto call = Start(runtime, ask, {Filled(50, 1.0f)});
    if (!comes_late) ++asked;
    if (rank == 3) {
      while (asked < 4) std::this_thread::yield();
      // What they have asked for gets to where it is held.
      std::this_thread::sleep_for(milliseconds(50));
      runtime->Cancel(0, call->ticket, Cancelled("NaN in 'loss'"));
    }
    const Status status = call->Wait();
    EXPECT_EQ(status.code(),
              rank == 3 ? StatusCode::kCancelled : StatusCode::kPeerLost);
    EXPECT_NE(status.message().find("NaN in 'loss'"), std::string::npos);
    if (!comes_late) ++failed;
    Step(runtime, rank, 7);
  });
}

}  // namespace
}  // namespace hvd
