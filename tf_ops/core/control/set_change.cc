// SPDX-License-Identifier: Apache-2.0
// Texts and checks of changes of process sets.
#include "core/control/set_change.h"

#include <algorithm>

#include "core/process_set.h"

namespace hvd {

std::string RanksText(const std::vector<int>& ranks) {
  std::string text = "[";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text + "]";
}

std::string NameCall(const SetRequest& request) {
  return request.removes
             ? "remove_process_set of set " + std::to_string(request.id)
             : "add_process_set(" + RanksText(request.ranks) + ")";
}

Status CheckSetRanks(const std::vector<int>& ranks, int size) {
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.empty()) return InvalidArgument("A process set has no ranks.");
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return InvalidArgument("A process set names a rank twice.");
  }
  if (sorted.front() < 0 || sorted.back() >= size) {
    return InvalidArgument(
        "A process set names rank " +
        std::to_string(sorted.front() < 0 ? sorted.front() : sorted.back()) +
        "; this job has the ranks 0 to " + std::to_string(size - 1) + ".");
  }
  return Status::Ok();
}

Status CheckSetChange(const SetChange& change, int job_size) {
  const Status wrong =
      Internal("the log has a change of process set " +
               std::to_string(change.id) + " that makes no sense.");
  const bool begins = change.step == SetStep::kPrepare;
  if (change.step == SetStep::kClose || change.serial < 0) return wrong;
  if (begins && (change.slot < 1 || change.slot >= kProcessSetSlots)) {
    return wrong;
  }
  const bool ends =
      change.step == SetStep::kRefuse || change.step == SetStep::kRemove;
  if (ends && change.status.ok()) return wrong;
  if (change.step == SetStep::kRefuse) return Status::Ok();
  if (change.serial == 0 || change.id < 1) return wrong;
  if (ends) return Status::Ok();
  if (!CheckSetRanks(change.ranks, job_size).ok() ||
      !std::is_sorted(change.ranks.begin(), change.ranks.end())) {
    return wrong;
  }
  return Status::Ok();
}

}  // namespace hvd
