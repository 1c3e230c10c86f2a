// SPDX-License-Identifier: Apache-2.0
// Rounds of jobs with limits of time, played until none of their threads was
// late.
#ifndef HVD_TESTS_CORE_ROUNDS_H_
#define HVD_TESTS_CORE_ROUNDS_H_

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "faults.h"
#include "harness.h"

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
