// SPDX-License-Identifier: Apache-2.0
// Remembers recent steps, which of them belong together and which were hit.
#include "core/step_aborts.h"

#include <algorithm>
#include <utility>

namespace hvd {

void StepAborts::Correspond(const std::vector<int64_t>& steps) {
  // Most tensors are agreed in the steps of the one before.
  if (!corresponding_.empty() && corresponding_.front() == steps) return;
  corresponding_.push_front(steps);
  if (corresponding_.size() > kRemembered) corresponding_.pop_back();
}

std::vector<int64_t> StepAborts::Corresponding(int rank, int64_t step) const {
  if (step == 0) return {};
  for (const auto& steps : corresponding_) {
    if (steps[rank] == step) return steps;
  }
  return {};
}

const Status* StepAborts::FindHit(int rank, int64_t step) const {
  if (step == 0) return nullptr;
  for (const HitStep& hit : hits_[rank]) {
    if (hit.step == step) return &hit.why;
  }
  return nullptr;
}

StepAborts::AbortId StepAborts::Open(Status why) {
  OpenAbort abort{next_id_++, std::move(why), {}, {}};
  for (int rank = 0; rank < size_; ++rank) abort.not_hit.insert(rank);
  open_.push_back(std::move(abort));
  // An abort whose keys a rank never submits again would stay for ever.
  if (open_.size() > kRemembered) open_.pop_front();
  return open_.back().id;
}

StepAborts::AbortId StepAborts::OldestFor(int rank) const {
  for (const OpenAbort& abort : open_) {
    if (abort.not_hit.count(rank) > 0) return abort.id;
  }
  return 0;
}

bool StepAborts::IsOpenFor(AbortId id, int rank) const {
  return std::any_of(open_.begin(), open_.end(), [&](const OpenAbort& abort) {
    return abort.id == id && abort.not_hit.count(rank) > 0;
  });
}

void StepAborts::Hit(AbortId id, int rank, int64_t step, const Status& why) {
  any_ = true;
  if (step != 0 && FindHit(rank, step) == nullptr) {
    hits_[rank].push_front({step, why});
    if (hits_[rank].size() > kRemembered) hits_[rank].pop_back();
  }
  auto abort = std::find_if(open_.begin(), open_.end(),
                            [id](const OpenAbort& a) { return a.id == id; });
  if (abort == open_.end()) return;
  abort->not_hit.erase(rank);
  if (abort->not_hit.empty()) open_.erase(abort);
}

void StepAborts::AddKey(AbortId id, const Key& key) {
  for (OpenAbort& abort : open_) {
    if (abort.id == id) abort.keys.insert(key);
  }
}

StepAborts::AbortId StepAborts::Find(int rank, const Key& key,
                                     Status* why) const {
  for (const OpenAbort& abort : open_) {
    if (abort.not_hit.count(rank) > 0 && abort.keys.count(key) > 0) {
      *why = abort.why;
      return abort.id;
    }
  }
  return 0;
}

}  // namespace hvd
