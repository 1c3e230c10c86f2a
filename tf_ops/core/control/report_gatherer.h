// SPDX-License-Identifier: Apache-2.0
// ReportGatherer: makes one report of those of all ranks of a host.
#ifndef HVD_CORE_CONTROL_REPORT_GATHERER_H_
#define HVD_CORE_CONTROL_REPORT_GATHERER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/control/recycling_map.h"
#include "core/control/report.h"
#include "core/status.h"

namespace hvd {

// A number is held until all ranks of the host have submitted it, but for those
// that have joined. That delays no agreement, because an agreement needs them
// all. The leader then counts a host, not each of its ranks.
//
// The leader must also know of numbers that only some have submitted: to warn
// of those who are missing, and to find the steps that an abort hits. So
// everything held is passed on
//
// - when something has been held for kLongestHold,
// - before anything but a submission is passed on: a rank takes something back,
//   or ends, or joins.
//
// Submissions that are no numbers, or have first dimensions, are passed on at
// once, past those that are held. A rank has one submission of a key at a time,
// or else it has taken the earlier one back. So what it says of one key stays
// in order.
//
// Reads no clock, and decides nothing. Owner: the gatherer of a host.
// Background thread only. Ranks are ranks of the set.
class ReportGatherer {
 public:
  using Clock = std::chrono::steady_clock;

  // Ranks of a host that work together are seldom further apart. Whoever waits
  // for the rest waits for seconds before anybody is warned.
  static constexpr std::chrono::milliseconds kLongestHold{20};

  // `ranks`: of the host, ascending.
  explicit ReportGatherer(std::vector<int> ranks);

  // Not Ok: the report makes no sense.
  Status Add(int rank, const Report& report, Clock::time_point now);

  // What the leader is to be told now. Nothing: not yet.
  std::optional<HostReport> Take(Clock::time_point now);

  // When Take may have something to tell though nothing comes. Nothing: never.
  std::optional<Clock::time_point> due() const;

  // All ranks of the set have joined, and begin anew.
  void ForgetJoined();

 private:
  // A number that some ranks have submitted, and others not yet. By place.
  struct Held {
    std::vector<bool> has;
    std::vector<int64_t> steps;
    int count = 0;
    Clock::time_point since;
  };

  void AddItem(size_t place, const ReportItem& item, Clock::time_point now);
  void Hold(size_t place, int64_t step, SignatureNumber number,
            Clock::time_point now);
  bool IsComplete(const Held& held) const;
  // Moves it to items_.
  void PassOn(SignatureNumber number, Held* held);
  void PassOnAll();
  // The group with the ranks and steps of `held`, among the groups that items_
  // ends with.
  HostSubmissions* FindOrAddGroup(const Held& held);
  void PassOnIfDue(Clock::time_point now);
  // The last record that every rank had seen when it submitted what is held.
  uint64_t LogSeen();

  const std::vector<int> ranks_;
  std::vector<bool> has_joined_;    // by place, like all that follow
  std::vector<uint64_t> log_seen_;  // of the latest report
  std::vector<uint64_t> log_told_;  // of the latest without anything held
  std::vector<int> held_count_;
  int joined_count_ = 0;
  RecyclingMap<SignatureNumber, Held> held_;
  Clock::time_point due_;        // of held_, or earlier
  std::vector<HostItem> items_;  // to be passed on
  size_t groups_begin_ = 0;      // behind it items_ has submissions alone
  bool tells_log_seen_ = false;  // a rank has told nothing else
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_REPORT_GATHERER_H_
