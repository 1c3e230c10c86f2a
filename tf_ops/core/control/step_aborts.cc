// SPDX-License-Identifier: Apache-2.0
// Remembers recent steps: which belong together, and which were hit.
#include "core/control/step_aborts.h"

#include <algorithm>
#include <utility>

namespace hvd {

void StepAborts::Correspond(const std::vector<int64_t>& steps) {
  // Most tensors are agreed in the same steps as the tensor before.
  if (!corresponding_.empty() && corresponding_.front() == steps) return;
  // Eager calls have no steps. They must not push out a step that goes on.
  if (std::all_of(steps.begin(), steps.end(),
                  [](int64_t step) { return step == 0; })) {
    return;
  }
  const auto known =
      std::find(corresponding_.begin(), corresponding_.end(), steps);
  if (known != corresponding_.end()) corresponding_.erase(known);
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

SharedStatus StepAborts::FindHit(int rank, int64_t step) const {
  if (step == 0) return nullptr;
  for (const HitStep& hit : hits_[rank]) {
    if (hit.step == step) return hit.why;
  }
  return nullptr;
}

StepAborts::AbortId StepAborts::Open(SharedStatus why) {
  OpenAbort abort{next_id_++, std::move(why), {}, size_, {}};
  abort.not_hit.assign(static_cast<size_t>(size_), true);
  open_.push_back(std::move(abort));
  // Otherwise an abort would stay for ever if a rank never submits one of its
  // keys.
  if (open_.size() > kRemembered) open_.pop_front();
  return open_.back().id;
}

StepAborts::AbortId StepAborts::OldestFor(int rank) const {
  for (const OpenAbort& abort : open_) {
    if (!abort.has_hit(rank)) return abort.id;
  }
  return 0;
}

bool StepAborts::IsOpenFor(AbortId id, int rank) const {
  return std::any_of(open_.begin(), open_.end(), [&](const OpenAbort& abort) {
    return abort.id == id && !abort.has_hit(rank);
  });
}

void StepAborts::Hit(AbortId id, int rank, int64_t step,
                     const SharedStatus& why) {
  any_ = true;
  if (step != 0 && FindHit(rank, step) == nullptr) {
    hits_[rank].push_front({step, why});
    if (hits_[rank].size() > kRemembered) hits_[rank].pop_back();
  }
  auto abort = std::find_if(open_.begin(), open_.end(),
                            [id](const OpenAbort& a) { return a.id == id; });
  if (abort == open_.end() || abort->has_hit(rank)) return;
  abort->not_hit[rank] = false;
  if (--abort->left == 0) open_.erase(abort);
}

void StepAborts::Spare(int rank) {
  for (auto abort = open_.begin(); abort != open_.end();) {
    if (!abort->has_hit(rank)) {
      abort->not_hit[rank] = false;
      --abort->left;
    }
    abort = abort->left == 0 ? open_.erase(abort) : std::next(abort);
  }
}

void StepAborts::AddKey(AbortId id, const Key& key) {
  for (OpenAbort& abort : open_) {
    if (abort.id == id) abort.keys.insert(key);
  }
}

StepAborts::AbortId StepAborts::Find(int rank, const Key& key,
                                     SharedStatus* why) const {
  for (const OpenAbort& abort : open_) {
    if (!abort.has_hit(rank) && abort.keys.count(key) > 0) {
      *why = abort.why;
      return abort.id;
    }
  }
  return 0;
}

}  // namespace hvd
