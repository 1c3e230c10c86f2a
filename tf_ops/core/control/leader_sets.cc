// SPDX-License-Identifier: Apache-2.0
// The part of Leader that passes on what is said of process sets.
#include <algorithm>
#include <utility>

#include "core/control/leader.h"

namespace hvd {
namespace {

Status NotOfThisSet() {
  return Internal("a change of process sets came to a set that has none.");
}

}  // namespace

void Leader::LeadSets(std::unique_ptr<SetChanges> changes) {
  set_changes_ = std::move(changes);
}

Status Leader::HandleItem(int rank, const SetRequest& request,
                          Clock::time_point now) {
  if (set_changes_ == nullptr) return NotOfThisSet();
  HVD_RETURN_IF_ERROR(set_changes_->Handle(rank, request, now));
  RefuseSetCallOfJoined();
  return Status::Ok();
}

void Leader::RefuseSetCallOfJoined() {
  if (set_changes_ == nullptr || matcher_.joined_count() == 0) return;
  std::vector<int> joined;
  for (int rank = 0; rank < size_; ++rank) {
    if (matcher_.has_joined(rank)) joined.push_back(rank);
  }
  set_changes_->RefuseWithout(joined);
}

Status Leader::HandleItem(int rank, const SetAnswer& answer,
                          Clock::time_point) {
  if (set_changes_ == nullptr) return NotOfThisSet();
  return set_changes_->Handle(rank, answer);
}

std::optional<SetChange> Leader::NextSetChange() {
  if (set_changes_ == nullptr) return std::nullopt;
  return set_changes_->Next();
}

void Leader::FindWaitingSetCall(Clock::time_point now, Watched* watched) {
  std::optional<Stall> stall;
  if (set_changes_ != nullptr) stall = set_changes_->Waiting(now);
  if (!stall.has_value()) {
    next_set_warning_s_ = 0;
    return;
  }
  const double warning_s = options_.stall_warning_s;
  const double shutdown_s = options_.stall_shutdown_s;
  const double waited_s = stall->waited_s;
  if (shutdown_s > 0 && waited_s >= shutdown_s && !watched->lost.has_value()) {
    watched->lost = stall;
  }
  // The gaps between warnings double.
  if (warning_s <= 0 || waited_s < std::max(warning_s, next_set_warning_s_)) {
    return;
  }
  next_set_warning_s_ = 2 * waited_s;
  watched->stalls.push_back(std::move(*stall));
}

}  // namespace hvd
