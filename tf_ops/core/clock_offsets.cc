// SPDX-License-Identifier: Apache-2.0
// Keeps the best answer of each host.
#include "core/clock_offsets.h"

namespace hvd {
namespace {

// Clocks that are kept right drift apart by less.
constexpr int64_t kDrift_ppm = 20;
// What takes longer tells nothing, and may be no answer to a question of ours.
constexpr int64_t kLongest_ns = 10'000'000'000;
constexpr int64_t kLatestTime_ns = int64_t{1} << 60;

}  // namespace

std::optional<ClockOffset> ClockOffsets::Answered(int host, int64_t asked_ns,
                                                  int64_t clock_ns,
                                                  int64_t arrived_ns) {
  if (asked_ns < 0 || asked_ns > arrived_ns ||
      arrived_ns - asked_ns > kLongest_ns || clock_ns < 0 ||
      clock_ns > kLatestTime_ns) {
    return std::nullopt;
  }
  const int64_t half_ns = (arrived_ns - asked_ns + 1) / 2;
  std::optional<Answer>& best = best_[host];
  const bool settles = ++answers_[host] == kFirstAnswers;
  bool is_better = true;
  if (best.has_value()) {
    const int64_t drift_ns =
        (arrived_ns - best->arrived_ns) / 1'000'000 * kDrift_ppm;
    is_better = half_ns < best->offset.error_ns + drift_ns;
  }
  if (is_better) {
    best = Answer{{clock_ns - (asked_ns + half_ns), half_ns}, arrived_ns};
  }
  if (!is_settled(host) || !(is_better || settles)) return std::nullopt;
  return best->offset;
}

std::optional<ClockOffset> ClockOffsets::Best(int host) const {
  if (!best_[host].has_value()) return std::nullopt;
  return best_[host]->offset;
}

}  // namespace hvd
