// SPDX-License-Identifier: Apache-2.0
// The part of Leader that fails submissions: aborted steps, ended scopes.
#include <algorithm>
#include <utility>

#include "core/control/agreement.h"
#include "core/control/leader.h"

namespace hvd {
namespace {

bool StartsWith(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

}  // namespace

bool Leader::FailIfDoomed(int rank, const Key& key, int64_t step) {
  if (const SharedStatus why = step_aborts_.FindHit(rank, step)) {
    FailNew(key, rank, why);
    return true;
  }
  if (step_aborts_.quiet()) return false;
  SharedStatus why;
  StepAborts::AbortId abort = step_aborts_.Find(rank, key, &why);
  if (abort == 0) return false;
  FailNew(key, rank, why);
  HitSteps(abort, why, {{rank, step}});
  return true;
}

bool Leader::FailIfScopeEnded(int rank, const Key& key, int64_t step) {
  if (ended_scopes_.empty()) return false;
  // A rank that asks again has opened its scope again.
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
      continue;  // the rank asked for it before it ended
    }
    const SharedStatus why = WillNotCome(key, scope.rank, scope.end.text);
    FailNew(key, rank, why);
    HitSteps(0, why, {{rank, step}});
    return true;
  }
  return false;
}

SharedStatus Leader::WillNotCome(const Key& key, int rank,
                                 const std::string& text) const {
  return Share(PeerLost(
      "'" + key.name + "' will not come from " + RankName(rank) + ": " + text,
      {CauseKind::kScopeEnded, job_ranks_[rank], key.name}));
}

Status Leader::HandleItem(int rank, const Withdrawal& withdrawal,
                          Clock::time_point) {
  const Key& key = withdrawal.key;
  if (step_aborts_.FindHit(rank, withdrawal.step) != nullptr) {
    // Its step is lost already, and the peers know it.
    return Status::Ok();
  }
  const SharedStatus why =
      Share(PeerLost("'" + key.name + "' failed because " + RankName(rank) +
                         " aborted its step: " + withdrawal.why.message(),
                     {CauseKind::kStepAborted, job_ranks_[rank], key.name}));
  StepAborts::AbortId abort = step_aborts_.OldestFor(rank);
  if (abort == 0) abort = step_aborts_.Open(why);
  step_aborts_.AddKey(abort, key);
  const auto found = pending_.find(key);
  if (withdrawal.step == 0 && found != pending_.end()) {
    const int place = PlaceOf(&found->second, rank, 0);
    if (place >= 0) FailAt(&found->second, rank, place, why);
    EraseIfEmpty(key);
  }
  HitSteps(abort, why, {{rank, withdrawal.step}});
  FailWaitingFor(abort, why, rank, key);
  return Status::Ok();
}

void Leader::FailWaitingFor(StepAborts::AbortId abort, const SharedStatus& why,
                            int rank, const Key& key) {
  const auto found = pending_.find(key);
  if (found == pending_.end() ||
      found->second.fronts[rank].signature != nullptr) {
    return;
  }
  Pending* const pending = &found->second;
  std::vector<StepOfRank> lost;
  for (int other = 0; other < size_; ++other) {
    const Waiting& front = pending->fronts[other];
    if (front.signature == nullptr || !step_aborts_.IsOpenFor(abort, other)) {
      continue;
    }
    if (front.step != 0) {
      lost.push_back({other, front.step});
    } else {
      FailAt(pending, other, 0, why);
      step_aborts_.Hit(abort, other, 0, why);
    }
  }
  HitSteps(abort, why, std::move(lost));
  EraseIfEmpty(key);
}

int Leader::PlacesOf(const Pending& pending, int rank) {
  if (pending.fronts[rank].signature == nullptr) return 0;
  return 1 + static_cast<int>(std::count_if(
                 pending.later.begin(), pending.later.end(),
                 [rank](const auto& later) { return later.first == rank; }));
}

Leader::Waiting* Leader::At(Pending* pending, int rank, int place) {
  Waiting& front = pending->fronts[rank];
  if (front.signature == nullptr) return nullptr;
  if (place == 0) return &front;
  for (auto& [later_rank, waiting] : pending->later) {
    if (later_rank == rank && --place == 0) return &waiting;
  }
  return nullptr;
}

int Leader::PlaceOf(Pending* pending, int rank, int64_t step) {
  int place = PlacesOf(*pending, rank) - 1;
  while (place >= 0 && At(pending, rank, place)->step != step) --place;
  return place;
}

void Leader::TakeOut(Pending* pending, int rank, int place) {
  // Later submissions move up.
  Waiting* free = At(pending, rank, place);
  auto last = pending->later.end();
  for (auto later = pending->later.begin(); later != pending->later.end();
       ++later) {
    if (later->first != rank) continue;
    last = later;
    if (place-- > 0) continue;
    *free = std::move(later->second);
    free = &later->second;
  }
  if (last != pending->later.end()) {
    pending->later.erase(last);
  } else {
    *free = Waiting();
    --pending->ready;
  }
}

void Leader::FailAt(Pending* pending, int rank, int place,
                    const SharedStatus& why) {
  failures_.Add(pending->key, rank, place, why, agreements_);
  TakeOut(pending, rank, place);
}

void Leader::FailNew(const Key& key, int rank, const SharedStatus& why) {
  int older = 0;
  if (!pending_.empty()) {
    const auto found = pending_.find(key);
    if (found != pending_.end()) older = PlacesOf(found->second, rank);
  }
  failures_.Add(key, rank, older, why, agreements_);
}

void Leader::HitSteps(StepAborts::AbortId abort, const SharedStatus& why,
                      std::vector<StepOfRank> lost) {
  Swept swept;
  // A list, because a recursion would be 1000 deep with 1000 ranks.
  for (size_t i = 0; i < lost.size(); ++i) {
    const StepOfRank hit = lost[i];
    HitStep(abort, why, hit, &swept, &lost);
  }
}

void Leader::HitStep(StepAborts::AbortId abort, const SharedStatus& why,
                     const StepOfRank& hit, Swept* swept,
                     std::vector<StepOfRank>* lost) {
  const auto [rank, step] = hit;
  if (step == 0) return step_aborts_.Hit(abort, rank, 0, why);
  if (step_aborts_.FindHit(rank, step) != nullptr) return;
  step_aborts_.Hit(abort, rank, step, why);
  std::vector<Pending*> emptied;
  for (auto& [key, pending] : pending_) {
    for (int place = PlacesOf(pending, rank) - 1; place >= 0; --place) {
      if (At(&pending, rank, place)->step != step) continue;
      step_aborts_.AddKey(abort, key);
      FailAt(&pending, rank, place, why);
      if (!swept->insert({&pending, place}).second) continue;
      SweepPlace(abort, why, &pending, place, rank, lost);
    }
    if (pending.ready == 0) emptied.push_back(&pending);
  }
  for (Pending* pending : emptied) EraseIfEmpty(Key(pending->key));
  const std::vector<int64_t> together = step_aborts_.Corresponding(rank, step);
  for (size_t other = 0; other < together.size(); ++other) {
    if (together[other] == 0) continue;
    lost->push_back({static_cast<int>(other), together[other]});
  }
}

void Leader::SweepPlace(StepAborts::AbortId abort, const SharedStatus& why,
                        Pending* pending, int place, int but,
                        std::vector<StepOfRank>* lost) {
  for (int other = 0; other < size_; ++other) {
    if (other == but) continue;
    const Waiting* const waiting = At(pending, other, place);
    if (waiting == nullptr) continue;
    // That rank has lost its step already, and waits in a later one.
    if (abort != 0 && !step_aborts_.IsOpenFor(abort, other)) continue;
    if (waiting->step == 0) {
      FailAt(pending, other, place, why);
    } else {
      lost->push_back({other, waiting->step});
    }
  }
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
  // Keys of that scope that others already wait for will not come either.
  std::vector<Key> keys;
  for (const auto& [key, pending] : pending_) {
    if (StartsWith(key.name, end.name_prefix) &&
        pending.fronts[rank].signature == nullptr) {
      keys.push_back(key);
    }
  }
  for (const Key& key : keys) {
    FailScope(key, WillNotCome(key, rank, end.text));
  }
  ForgetScopeIfAllEnded(end.name_prefix);
  return Status::Ok();
}

void Leader::FailScope(const Key& key, const SharedStatus& why) {
  const auto found = pending_.find(key);
  if (found == pending_.end()) return;  // another rank's step took it along
  std::vector<StepOfRank> lost;
  for (int rank = 0; rank < size_; ++rank) {
    const Waiting& front = found->second.fronts[rank];
    if (front.signature == nullptr) continue;
    if (front.step != 0) {
      lost.push_back({rank, front.step});
    } else {
      FailAt(&found->second, rank, 0, why);
    }
  }
  HitSteps(0, why, std::move(lost));
  EraseIfEmpty(key);
}

void Leader::ForgetScopeIfAllEnded(const std::string& name_prefix) {
  const auto is_of_it = [&](const EndedScope& scope) {
    return scope.end.name_prefix == name_prefix;
  };
  if (std::count_if(ended_scopes_.begin(), ended_scopes_.end(), is_of_it) <
      size_) {
    return;
  }
  // From now on it is another loop. Ranks enter it one after the other.
  ended_scopes_.erase(
      std::remove_if(ended_scopes_.begin(), ended_scopes_.end(), is_of_it),
      ended_scopes_.end());
}

}  // namespace hvd
