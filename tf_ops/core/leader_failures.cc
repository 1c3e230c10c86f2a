// SPDX-License-Identifier: Apache-2.0
// The part of Leader that fails submissions: aborted steps, ended scopes.
#include <algorithm>
#include <utility>

#include "core/agreement.h"
#include "core/leader.h"

namespace hvd {
namespace {

bool StartsWith(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

}  // namespace

bool Leader::FailIfDoomed(int rank, const Key& key, int64_t step) {
  if (const Status* why = step_aborts_.FindHit(rank, step)) {
    Fail(key, {rank}, *why);
    return true;
  }
  if (step_aborts_.quiet()) return false;
  Status why;
  StepAborts::AbortId abort = step_aborts_.Find(rank, key, &why);
  if (abort == 0) return false;
  Fail(key, {rank}, why);
  HitStep(abort, why, rank, step);
  return true;
}

bool Leader::FailIfScopeEnded(int rank, const Key& key, int64_t step) {
  if (ended_scopes_.empty()) return false;
  // Whoever asks again has opened its own scope again.
  ended_scopes_.erase(std::remove_if(ended_scopes_.begin(), ended_scopes_.end(),
                                     [&](const EndedScope& scope) {
                                       return scope.rank == rank &&
                                              StartsWith(key.name,
                                                         scope.end.name_prefix);
                                     }),
                      ended_scopes_.end());
  for (const EndedScope& scope : ended_scopes_) {
    if (!StartsWith(key.name, scope.end.name_prefix)) continue;
    auto found = pending_.find(key);
    if (found != pending_.end() &&
        found->second.fronts[scope.rank].signature != nullptr) {
      continue;  // it has asked for this one before it ended
    }
    Status why = PeerLost("'" + key.name + "' will not come from " +
                              RankName(scope.rank) + ": " + scope.end.text,
                          ScopeEnded(scope.rank, key));
    Fail(key, {rank}, why);
    HitStep(0, why, rank, step);
    return true;
  }
  return false;
}

Status Leader::HandleItem(int rank, const Withdrawal& withdrawal,
                          Clock::time_point) {
  const Key& key = withdrawal.key;
  if (step_aborts_.FindHit(rank, withdrawal.step) != nullptr) {
    // Its step is lost already and the peers know.
    return Status::Ok();
  }
  Status why = PeerLost("'" + key.name + "' failed because " + RankName(rank) +
                            " aborted its step: " + withdrawal.why.message(),
                        {CauseKind::kStepAborted, job_ranks_[rank], key.name});
  StepAborts::AbortId abort = step_aborts_.OldestFor(rank);
  if (abort == 0) abort = step_aborts_.Open(why);
  step_aborts_.AddKey(abort, key);
  auto found = pending_.find(key);
  if (withdrawal.step == 0 && found != pending_.end() &&
      TakeOut(&found->second, rank, 0)) {
    Fail(key, {rank}, why);
    EraseIfEmpty(key);
  }
  HitStep(abort, why, rank, withdrawal.step);
  FailWaitingFor(abort, why, rank, key);
  return Status::Ok();
}

void Leader::FailWaitingFor(StepAborts::AbortId abort, const Status& why,
                            int rank, const Key& key) {
  auto found = pending_.find(key);
  if (found == pending_.end() ||
      found->second.fronts[rank].signature != nullptr) {
    return;
  }
  std::vector<std::pair<int, int64_t>> waiting;
  for (int other = 0; other < size_; ++other) {
    const Waiting& front = found->second.fronts[other];
    if (front.signature != nullptr && step_aborts_.IsOpenFor(abort, other)) {
      waiting.emplace_back(other, front.step);
    }
  }
  for (const auto& [other, step] : waiting) {
    if (step != 0) {
      HitStep(abort, why, other, step);
      found = pending_.find(key);  // which may have gone with that step
    } else if (found != pending_.end() && TakeOut(&found->second, other, 0)) {
      Fail(key, {other}, why);
      step_aborts_.Hit(abort, other, 0, why);
    }
  }
  EraseIfEmpty(key);
}

bool Leader::TakeOut(Pending* pending, int rank, int64_t step) {
  Waiting& front = pending->fronts[rank];
  if (front.signature == nullptr || front.step != step) return false;
  front = Waiting();
  --pending->ready;
  for (auto later = pending->later.begin(); later != pending->later.end();
       ++later) {
    if (later->first != rank) continue;
    front = std::move(later->second);
    ++pending->ready;
    pending->later.erase(later);
    break;
  }
  return true;
}

void Leader::HitStep(StepAborts::AbortId abort, const Status& why, int rank,
                     int64_t step) {
  if (step_aborts_.FindHit(rank, step) != nullptr) return;
  std::vector<Key> keys;
  for (const auto& [key, pending] : pending_) {
    const Waiting& front = pending.fronts[rank];
    if (step != 0 && front.signature != nullptr && front.step == step) {
      keys.push_back(key);
    }
  }
  for (const Key& key : keys) step_aborts_.AddKey(abort, key);
  step_aborts_.Hit(abort, rank, step, why);
  // Whom the lost submissions keep waiting is lost too.
  std::vector<std::pair<int, int64_t>> others;
  for (const Key& key : keys) {
    Pending& pending = pending_.find(key)->second;
    TakeOut(&pending, rank, step);
    Fail(key, {rank}, why);
    for (int other = 0; other < size_; ++other) {
      const Waiting& front = pending.fronts[other];
      if (other == rank || front.signature == nullptr) continue;
      // It has lost its step and waits in a later one.
      if (abort != 0 && !step_aborts_.IsOpenFor(abort, other)) continue;
      others.emplace_back(other, front.step);
      if (TakeOut(&pending, other, 0)) Fail(key, {other}, why);
    }
    EraseIfEmpty(key);
  }
  std::vector<int64_t> together = step_aborts_.Corresponding(rank, step);
  for (size_t other = 0; other < together.size(); ++other) {
    others.emplace_back(static_cast<int>(other), together[other]);
  }
  for (const auto& [other, other_step] : others) {
    if (other_step != 0) HitStep(abort, why, other, other_step);
  }
}

Cause Leader::ScopeEnded(int rank, const Key& key) const {
  return {CauseKind::kScopeEnded, job_ranks_[rank], key.name};
}

Status Leader::HandleItem(int rank, const ScopeEnd& end, Clock::time_point) {
  ended_scopes_.erase(std::remove_if(ended_scopes_.begin(), ended_scopes_.end(),
                                     [&](const EndedScope& scope) {
                                       return scope.rank == rank &&
                                              scope.end.name_prefix ==
                                                  end.name_prefix;
                                     }),
                      ended_scopes_.end());
  if (end.text.empty()) return Status::Ok();  // open again
  ended_scopes_.push_back({rank, end});
  // What others already wait for in that scope will not come either.
  std::vector<std::pair<int, Key>> lost;
  for (const auto& [key, pending] : pending_) {
    if (!StartsWith(key.name, end.name_prefix) ||
        pending.fronts[rank].signature != nullptr) {
      continue;
    }
    for (int other = 0; other < size_; ++other) {
      if (pending.fronts[other].signature != nullptr) {
        lost.emplace_back(other, key);
      }
    }
  }
  for (const auto& [other, key] : lost) {
    auto found = pending_.find(key);
    if (found == pending_.end()) continue;
    const Waiting& front = found->second.fronts[other];
    if (front.signature == nullptr) continue;
    const int64_t step = front.step;
    const Status why = PeerLost("'" + key.name + "' will not come from " +
                                    RankName(rank) + ": " + end.text,
                                ScopeEnded(rank, key));
    if (step == 0 && TakeOut(&found->second, other, 0)) {
      Fail(key, {other}, why);
      EraseIfEmpty(key);
    }
    HitStep(0, why, other, step);
  }
  ForgetScopeIfAllEnded(end.name_prefix);
  return Status::Ok();
}

void Leader::ForgetScopeIfAllEnded(const std::string& name_prefix) {
  const auto is_of_it = [&](const EndedScope& scope) {
    return scope.end.name_prefix == name_prefix;
  };
  if (std::count_if(ended_scopes_.begin(), ended_scopes_.end(), is_of_it) <
      size_) {
    return;
  }
  // What comes now is another loop, which ranks enter one after the other.
  ended_scopes_.erase(
      std::remove_if(ended_scopes_.begin(), ended_scopes_.end(), is_of_it),
      ended_scopes_.end());
}

void Leader::Fail(const Key& key, std::vector<int> ranks, Status status) {
  failures_.push_back(
      {{key, std::move(ranks), std::move(status)}, ++decisions_});
}

}  // namespace hvd
