// SPDX-License-Identifier: Apache-2.0
// StallFinder: finds out why nothing moves, for people to read.
#ifndef HVD_CORE_CONTROL_STALL_FINDER_H_
#define HVD_CORE_CONTROL_STALL_FINDER_H_

#include <chrono>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/control/matcher.h"
#include "core/control/stall.h"
#include "core/options.h"
#include "core/request.h"

namespace hvd {

// What users must be told.
struct Watched {
  std::vector<std::string> warnings;
  std::vector<Stall> stalls;  // a warning is due for each
  // Set: the job has waited for HVD_STALL_SHUTDOWN_S and must fail.
  std::optional<Stall> lost;
};

// Reads a Matcher, and changes nothing there. It remembers what was warned of.
//
// Owner: the leader of a set. Background thread only. Ranks are ranks of the
// set, unless a name says job.
class StallFinder {
 public:
  using Clock = std::chrono::steady_clock;

  // The matcher must outlive it.
  StallFinder(std::vector<int> job_ranks, const Options& options,
              const Matcher* matcher);

  struct Found {
    Watched watched;
    // Set: every rank has waited for another for HVD_STALL_SHUTDOWN_S. All that
    // waits must fail with this text. No rank is to blame, so nothing is lost.
    std::optional<std::string> mismatch;
  };
  Found Find(Clock::time_point now);

 private:
  using Pending = Matcher::Pending;

  // The next warning of a key that has waited since then.
  struct NextWarning {
    Clock::time_point since;
    double after_s = 0;  // seconds after `since`
  };

  // Appends what is due to `watched`.
  void FindStalls(Clock::time_point now, Watched* watched);
  // The same where nothing waits but ranks that have joined.
  void FindWaitingJoins(Clock::time_point now, Watched* watched);
  // How long a key has to wait to be of interest. Nothing: no wait is.
  std::optional<double> ShortestWait() const;
  // Seconds after `since` at which the key's next warning is due.
  double NextWarningOf(const Pending& pending) const;
  void ForgetOldWarnings();
  // Whether every rank waits for another one, and nothing has been submitted
  // for HVD_MISMATCH_WARNING_S.
  bool AllWaitForOthers(Clock::time_point now) const;
  std::string TextOfMismatch(Clock::time_point now) const;

  const std::vector<int> job_ranks_;
  const int size_;
  const Options options_;
  const Matcher* const matcher_;
  // When to warn again of keys that were warned of. The others are due after
  // HVD_STALL_WARNING_S.
  std::unordered_map<Key, NextWarning, KeyHash> next_warnings_;
  // The next warning of ranks that wait for others to join.
  NextWarning next_join_warning_;
  // The last submission before the mismatch that was warned of.
  std::optional<Clock::time_point> mismatch_warned_;
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_STALL_FINDER_H_
