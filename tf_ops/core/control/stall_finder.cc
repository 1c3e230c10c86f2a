// SPDX-License-Identifier: Apache-2.0
// Groups what waits by the ranks that are missing.
#include "core/control/stall_finder.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/control/mismatch.h"

namespace hvd {
namespace {

double SecondsBetween(StallFinder::Clock::time_point from,
                      StallFinder::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

bool IsWaitedFor(const Key& key) { return key.name != kMeetingOfLanes; }

}  // namespace

StallFinder::StallFinder(std::vector<int> job_ranks, const Options& options,
                         const Matcher* matcher)
    : job_ranks_(std::move(job_ranks)),
      size_(static_cast<int>(job_ranks_.size())),
      options_(options),
      matcher_(matcher) {}

StallFinder::Found StallFinder::Find(Clock::time_point now) {
  Found found;
  const bool is_any_waited_for = std::any_of(
      matcher_->begin(), matcher_->end(),
      [](const auto& element) { return IsWaitedFor(element.first); });
  if (!is_any_waited_for) {
    next_warnings_.clear();
    FindWaitingJoins(now, &found.watched);
    return found;
  }
  const bool is_mismatch = AllWaitForOthers(now);
  if (is_mismatch && mismatch_warned_ != matcher_->last_submission()) {
    mismatch_warned_ = matcher_->last_submission();
    found.watched.warnings.push_back(TextOfMismatch(now));
  }
  FindStalls(now, &found.watched);
  if (is_mismatch && found.watched.lost.has_value()) {
    found.watched.lost.reset();
    found.mismatch = TextOfMismatch(now);
  }
  return found;
}

void StallFinder::FindStalls(Clock::time_point now, Watched* watched) {
  const double warning_s = options_.stall_warning_s;
  const double shutdown_s = options_.stall_shutdown_s;
  // Groups the tensors by the ranks that are missing. A warning that is due
  // also names tensors that have waited for half as long. So a stall makes one
  // warning.
  struct Group {
    Stall stall;
    std::vector<const Pending*> pending;
    bool is_due = false;
  };
  std::map<std::vector<int>, Group> groups;
  const std::optional<double> shortest_s = ShortestWait();
  if (!shortest_s.has_value()) return;
  for (const auto& [key, pending] : *matcher_) {
    if (!IsWaitedFor(key)) continue;
    const double waited_s = SecondsBetween(pending.since, now);
    if (waited_s < *shortest_s) continue;
    std::vector<int> missing;
    for (int rank = 0; rank < size_; ++rank) {
      if (pending.has(rank) || matcher_->has_joined(rank)) continue;
      missing.push_back(job_ranks_[rank]);
    }
    Group& group = groups[missing];
    group.stall.missing = missing;
    group.stall.names.push_back(key.name);
    group.stall.waited_s = std::max(group.stall.waited_s, waited_s);
    group.pending.push_back(&pending);
    group.is_due |= warning_s > 0 && waited_s >= NextWarningOf(pending);
  }
  for (auto& [missing, group] : groups) {
    const double waited_s = group.stall.waited_s;
    if (shutdown_s > 0 && waited_s >= shutdown_s &&
        (!watched->lost.has_value() || watched->lost->waited_s < waited_s)) {
      watched->lost = group.stall;
    }
    if (!group.is_due) continue;
    // The gaps between warnings double while the tensor waits.
    for (const Pending* pending : group.pending) {
      const double age_s = SecondsBetween(pending->since, now);
      const double next_s =
          std::max(2 * NextWarningOf(*pending), age_s + warning_s);
      next_warnings_[pending->key] = {pending->since, next_s};
    }
    watched->stalls.push_back(std::move(group.stall));
  }
  ForgetOldWarnings();
}

void StallFinder::FindWaitingJoins(Clock::time_point now, Watched* watched) {
  if (matcher_->joined_count() == 0) return;
  const double warning_s = options_.stall_warning_s;
  const double shutdown_s = options_.stall_shutdown_s;
  // Since then no rank has asked for anything.
  const Clock::time_point since = matcher_->last_submission();
  if (next_join_warning_.since != since)
    next_join_warning_ = {since, warning_s};
  Stall stall;
  stall.waited_s = SecondsBetween(since, now);
  const bool ends = shutdown_s > 0 && stall.waited_s >= shutdown_s;
  const bool is_due =
      warning_s > 0 && stall.waited_s >= next_join_warning_.after_s;
  if (!ends && !is_due) return;
  stall.names = {"join"};
  stall.are_calls = true;
  for (int rank = 0; rank < size_; ++rank) {
    if (!matcher_->has_joined(rank)) stall.missing.push_back(job_ranks_[rank]);
  }
  if (ends) watched->lost = stall;
  if (!is_due) return;
  next_join_warning_.after_s =
      std::max(2 * next_join_warning_.after_s, stall.waited_s + warning_s);
  watched->stalls.push_back(std::move(stall));
}

std::optional<double> StallFinder::ShortestWait() const {
  const double warning_s = options_.stall_warning_s;
  const double shutdown_s = options_.stall_shutdown_s;
  if (warning_s <= 0 && shutdown_s <= 0) return std::nullopt;
  if (warning_s <= 0) return shutdown_s;
  if (shutdown_s <= 0) return 0.5 * warning_s;
  return std::min(0.5 * warning_s, shutdown_s);
}

double StallFinder::NextWarningOf(const Pending& pending) const {
  const auto next = next_warnings_.find(pending.key);
  // A key that was agreed meanwhile, and waits anew, has another `since`.
  return next == next_warnings_.end() || next->second.since != pending.since
             ? options_.stall_warning_s
             : next->second.after_s;
}

void StallFinder::ForgetOldWarnings() {
  if (next_warnings_.empty()) return;
  std::unordered_map<Key, NextWarning, KeyHash> kept;
  for (const auto& [key, pending] : *matcher_) {
    const auto next = next_warnings_.find(key);
    if (next == next_warnings_.end()) continue;
    if (next->second.since == pending.since) kept.insert(*next);
  }
  next_warnings_ = std::move(kept);
}

bool StallFinder::AllWaitForOthers(Clock::time_point now) const {
  if (options_.mismatch_warning_s <= 0 ||
      SecondsBetween(matcher_->last_submission(), now) <
          options_.mismatch_warning_s) {
    return false;
  }
  for (int rank = 0; rank < size_; ++rank) {
    if (matcher_->has_joined(rank)) continue;
    const auto waits = [rank](const auto& element) {
      return IsWaitedFor(element.first) && element.second.has(rank);
    };
    // A rank that waits for nothing may just be slow.
    if (std::none_of(matcher_->begin(), matcher_->end(), waits)) return false;
  }
  return true;
}

std::string StallFinder::TextOfMismatch(Clock::time_point now) const {
  std::vector<WaitedFor> tensors;
  for (const auto& [key, pending] : *matcher_) {
    if (!IsWaitedFor(key)) continue;
    WaitedFor& tensor = tensors.emplace_back();
    tensor.name = key.name;
    for (int rank = 0; rank < size_; ++rank) {
      if (!pending.has(rank)) continue;
      tensor.signature = pending.fronts[rank].signature;
      tensor.ranks.push_back(job_ranks_[rank]);
    }
  }
  return MismatchText(std::move(tensors), job_ranks_,
                      SecondsBetween(matcher_->last_submission(), now));
}

}  // namespace hvd
