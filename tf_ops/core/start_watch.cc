// SPDX-License-Identifier: Apache-2.0
// StartWatch: the thread that watches the time.
#include "core/start_watch.h"

#include <algorithm>
#include <utility>

#include "core/control/stall.h"
#include "core/log.h"

namespace hvd {

StartWatch::StartWatch(double warning_s, double limit_s,
                       std::function<void()> give_up) {
  if (warning_s <= 0 && limit_s <= 0) return;
  thread_ =
      std::thread([this, warning_s, limit_s, give_up = std::move(give_up)] {
        Watch(warning_s, limit_s, give_up);
      });
}

StartWatch::~StartWatch() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
  }
  over_changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StartWatch::Watch(double warning_s, double limit_s,
                       const std::function<void()>& give_up) {
  // Options keep the warning's time below the limit.
  if (warning_s > 0) {
    if (!Sleep(warning_s)) return;
    Log(LogLevel::kWarning,
        "hvd.init() has waited for other ranks for " + WholeSeconds(warning_s) +
            ": all ranks of the job have to call it, with the same comm=. "
            "Those that do not warn of this have not, or with another one. If "
            "all of them warn, their hosts do not hear each other: name a "
            "network that all hosts share by hvdrun --network-interfaces.");
  }
  if (limit_s <= 0 || !Sleep(limit_s)) return;
  Log(LogLevel::kError, "hvd.init() has waited for other ranks for " +
                            WholeSeconds(limit_s) +
                            " (HVD_STALL_SHUTDOWN_S); the job is ended.");
  give_up();
}

bool StartWatch::Sleep(double seconds) {
  // Longer than any job, and short enough for every clock.
  constexpr double kLongest_s = 1e8;
  const auto until =
      begin_ +
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(
          std::chrono::duration<double>(std::min(seconds, kLongest_s)));
  std::unique_lock<std::mutex> lock(mutex_);
  return !over_changed_.wait_until(lock, until, [this] { return over_; });
}

}  // namespace hvd
