// SPDX-License-Identifier: Apache-2.0
// Rounds of jobs with limits of time, played until none of their threads was
// late, and how late they were.
#ifndef HVD_TESTS_CORE_ROUNDS_H_
#define HVD_TESTS_CORE_ROUNDS_H_

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "faults.h"
#include "harness.h"
#include "meeting.h"

namespace hvd {

// `round` returns by how many seconds its latest thread was late. The engine
// may rightly miss a rank whose thread did not run for long. So when it is more
// than `most_late_s`, what the round has found does not count, and it is played
// again. If threads are late every time, ctest's limit ends the test.
inline void PlayUntilOnTime(double most_late_s,
                            const std::function<double()>& round) {
  for (;;) {
    const int before = test::failures;
    const double late_s = round();
    if (late_s <= most_late_s) return;
    test::failures = before;
    std::printf("Played again, as a thread was late by %.3f s.\n", late_s);
  }
}

// By how much the threads of a test are late. Faults know that of the engine's.
class Lateness {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Lateness(int size) : meeting_(size) {}

  // All threads of the test meet. To be called once by each.
  void Begin() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      begun_ = Clock::now();
    }
    meeting_.Wait();
  }
  // What the thread does at once behind that is done by now.
  void NoteBegun() {
    std::lock_guard<std::mutex> lock(mutex_);
    NoteLocked(begun_);
  }
  // It should have come here at that time.
  void Note(Clock::time_point due) {
    std::lock_guard<std::mutex> lock(mutex_);
    NoteLocked(due);
  }
  double most_s() {
    std::lock_guard<std::mutex> lock(mutex_);
    return most_s_;
  }

 private:
  void NoteLocked(Clock::time_point due) {
    const std::chrono::duration<double> late = Clock::now() - due;
    most_s_ = std::max(most_s_, late.count());
  }

  Meeting meeting_;
  std::mutex mutex_;
  Clock::time_point begun_;  // when the last thread came
  double most_s_ = 0;
};

inline std::vector<std::shared_ptr<Faults>> NewFaults(int size) {
  std::vector<std::shared_ptr<Faults>> faults;
  for (int i = 0; i < size; ++i) faults.push_back(std::make_shared<Faults>());
  return faults;
}

// The longest pause of any rank.
inline double LongestPause_s(
    const std::vector<std::shared_ptr<Faults>>& faults) {
  double longest_s = 0;
  for (const auto& rank : faults) {
    longest_s = std::max(longest_s, rank->longest_pause_s());
  }
  return longest_s;
}

}  // namespace hvd

#endif  // HVD_TESTS_CORE_ROUNDS_H_
