// SPDX-License-Identifier: Apache-2.0
// Holds numbers until a host is complete, and passes on everything else.
#include "core/control/report_gatherer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

namespace hvd {

ReportGatherer::ReportGatherer(std::vector<int> ranks)
    : ranks_(std::move(ranks)),
      has_joined_(ranks_.size(), false),
      log_seen_(ranks_.size(), 0),
      log_told_(ranks_.size(), 0),
      held_count_(ranks_.size(), 0) {}

Status ReportGatherer::Add(int rank, const Report& report,
                           Clock::time_point now) {
  const auto found = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  if (found == ranks_.end() || *found != rank) {
    return Internal("a report came to a rank that does not gather it.");
  }
  const auto place = static_cast<size_t>(found - ranks_.begin());
  if (report.log_seen < log_seen_[place]) {
    return Internal("a report of log record " +
                    std::to_string(report.log_seen) + " came after one of " +
                    std::to_string(log_seen_[place]) + ".");
  }
  for (const ReportItem& item : report.items) AddItem(place, item, now);
  if (report.items.empty()) tells_log_seen_ = true;
  log_seen_[place] = report.log_seen;
  return Status::Ok();
}

void ReportGatherer::AddItem(size_t place, const ReportItem& item,
                             Clock::time_point now) {
  const auto* const cached = std::get_if<CachedSubmissions>(&item);
  if (cached != nullptr && cached->first_dims.empty()) {
    for (SignatureNumber number : cached->numbers)
      Hold(place, cached->step, number, now);
    return;
  }
  const bool joins = std::holds_alternative<Join>(item);
  if (joins || std::holds_alternative<Unjoin>(item)) {
    joined_count_ += static_cast<int>(joins) - (has_joined_[place] ? 1 : 0);
    has_joined_[place] = joins;
  }
  if (cached == nullptr && !std::holds_alternative<Submission>(item)) {
    PassOnAll();
  }
  items_.emplace_back(HostMemberItem{ranks_[place], item});
  groups_begin_ = items_.size();
}

void ReportGatherer::Hold(size_t place, int64_t step, SignatureNumber number,
                          Clock::time_point now) {
  auto element = held_.FindOrInsert(number);
  // The rank submits a second time what is held, and has not taken it back, or
  // that would have been passed on. So this makes no sense. The leader sees it
  // as it is.
  if (element->second.count > 0 && element->second.has[place]) {
    PassOnAll();
    element = held_.FindOrInsert(number);
  }
  Held& held = element->second;
  if (held.count == 0) {
    held.has.assign(ranks_.size(), false);
    held.steps.assign(ranks_.size(), 0);
    held.since = now;
    if (held_.size() == 1) due_ = now + kLongestHold;
  }
  held.has[place] = true;
  held.steps[place] = step;
  ++held.count;
  ++held_count_[place];
  if (!IsComplete(held)) return;
  PassOn(number, &held);
  held_.Erase(element);
}

bool ReportGatherer::IsComplete(const Held& held) const {
  if (held.count == static_cast<int>(ranks_.size())) return true;
  if (joined_count_ == 0) return false;
  for (size_t place = 0; place < ranks_.size(); ++place) {
    if (!held.has[place] && !has_joined_[place]) return false;
  }
  return true;
}

void ReportGatherer::PassOn(SignatureNumber number, Held* held) {
  FindOrAddGroup(*held)->numbers.push_back(number);
  for (size_t place = 0; place < ranks_.size(); ++place) {
    if (held->has[place]) --held_count_[place];
  }
  held->count = 0;
}

void ReportGatherer::PassOnAll() {
  while (!held_.empty()) {
    const auto element = held_.begin();
    PassOn(element->first, &element->second);
    held_.Erase(element);
  }
}

HostSubmissions* ReportGatherer::FindOrAddGroup(const Held& held) {
  HostSubmissions group;
  for (size_t place = 0; place < ranks_.size(); ++place) {
    if (!held.has[place]) continue;
    group.ranks.push_back(ranks_[place]);
    group.steps.push_back(held.steps[place]);
  }
  // The latest is the most likely one.
  for (size_t i = items_.size(); i > groups_begin_; --i) {
    auto& other = std::get<HostSubmissions>(items_[i - 1]);
    if (other.steps == group.steps && other.ranks == group.ranks) return &other;
  }
  return &std::get<HostSubmissions>(items_.emplace_back(std::move(group)));
}

std::optional<HostReport> ReportGatherer::Take(Clock::time_point now) {
  PassOnIfDue(now);
  if (items_.empty() && !tells_log_seen_) return std::nullopt;
  tells_log_seen_ = false;
  groups_begin_ = 0;
  return HostReport{LogSeen(), std::exchange(items_, {})};
}

void ReportGatherer::PassOnIfDue(Clock::time_point now) {
  if (held_.empty() || now < due_) return;
  const auto oldest = std::min_element(held_.begin(), held_.end(),
                                       [](const auto& a, const auto& b) {
                                         return a.second.since < b.second.since;
                                       });
  due_ = oldest->second.since + kLongestHold;
  if (now >= due_) PassOnAll();
}

std::optional<ReportGatherer::Clock::time_point> ReportGatherer::due() const {
  if (held_.empty()) return std::nullopt;
  return due_;
}

uint64_t ReportGatherer::LogSeen() {
  for (size_t place = 0; place < ranks_.size(); ++place) {
    if (held_count_[place] == 0) log_told_[place] = log_seen_[place];
  }
  return *std::min_element(log_told_.begin(), log_told_.end());
}

void ReportGatherer::ForgetJoined() {
  has_joined_.assign(ranks_.size(), false);
  joined_count_ = 0;
}

}  // namespace hvd
