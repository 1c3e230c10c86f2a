// SPDX-License-Identifier: Apache-2.0
// Remembers the causes of recent failures.
#include "adapter/failed_calls.h"

namespace hvd {

void FailedCalls::Ended(const std::string& name, const Status& status) {
  // A cancelled call follows another failure, which says more.
  if (status.code() == StatusCode::kCancelled) return;
  const Cause* cause = status.cause();
  if (cause == nullptr && !any_.load(std::memory_order_relaxed)) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (cause == nullptr) {
    by_name_.erase(name);
    last_.reset();
  } else {
    if (by_name_.size() >= kRemembered) by_name_.clear();
    by_name_[name] = *cause;
    last_ = *cause;
  }
  any_ = !by_name_.empty();
}

std::optional<Cause> FailedCalls::CauseOf(const std::string& name) const {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = by_name_.find(name);
  if (found != by_name_.end()) return found->second;
  // Several ops of a graph may have the name: see matched_names.h.
  const std::string numbered = name + "@";
  found = by_name_.lower_bound(numbered);
  if (found == by_name_.end() || found->first.rfind(numbered, 0) != 0 ||
      found->first.find_first_not_of("0123456789", numbered.size()) !=
          std::string::npos) {
    return std::nullopt;
  }
  return found->second;
}

std::optional<Cause> FailedCalls::CauseOfLast() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return last_;
}

}  // namespace hvd
