// SPDX-License-Identifier: Apache-2.0
// The part of Leader for ranks that join.
#include <utility>

#include "core/control/agreement.h"
#include "core/control/leader.h"

namespace hvd {

Status Leader::HandleItem(int rank, const Join&, Clock::time_point now) {
  if (matcher_.has_joined(rank)) {
    return Internal(NameRanks({job_ranks_[rank]}) + " joins twice.");
  }
  MoveAllToMatcher();
  matcher_.Heard(now);
  aborts_.WithdrawRefused(rank);
  matcher_.Join(rank);
  aborts_.Spare(rank);
  DecideWithoutJoined();
  RefuseSetCallOfJoined();
  if (matcher_.joined_count() < size_) return Status::Ok();
  for (int other = 0; other < size_; ++other) matcher_.Unjoin(other);
  join_news_.push_back(Joined{rank});
  return Status::Ok();
}

Status Leader::HandleItem(int rank, const Unjoin&, Clock::time_point now) {
  matcher_.Heard(now);
  // Else all have joined meanwhile, and the log answers it.
  if (!matcher_.has_joined(rank)) return Status::Ok();
  matcher_.Unjoin(rank);
  join_news_.push_back(JoinWithdrawn{rank});
  return Status::Ok();
}

void Leader::DecideWithoutJoined() {
  std::vector<Key> complete;
  for (const auto& [key, pending] : matcher_) {
    if (matcher_.IsComplete(pending)) complete.push_back(key);
  }
  for (const Key& key : complete) {
    Pending* pending = matcher_.Find(key);
    while (pending != nullptr && matcher_.IsComplete(*pending)) {
      pending = Decide(pending);
    }
    matcher_.EraseIfEmpty(key);
  }
}

std::shared_ptr<const std::vector<int>> Leader::AbsentFrom(
    const Pending& pending) {
  if (pending.ready == size_) return nullptr;
  std::vector<int> absent;
  for (int rank = 0; rank < size_; ++rank) {
    if (!pending.has(rank)) absent.push_back(rank);
  }
  if (absent_ == nullptr || *absent_ != absent) {
    absent_ = std::make_shared<const std::vector<int>>(std::move(absent));
  }
  return absent_;
}

}  // namespace hvd
