// SPDX-License-Identifier: Apache-2.0
// Fails submissions of lost steps, of ended scopes and of ranks that differ.
#include "core/control/abort_policy.h"

#include <utility>

#include "core/control/agreement.h"
#include "core/quoted.h"

namespace hvd {

AbortPolicy::AbortPolicy(const std::vector<int>& job_ranks, Matcher* matcher)
    : job_ranks_(job_ranks),
      size_(static_cast<int>(job_ranks.size())),
      matcher_(matcher),
      step_aborts_(size_),
      ended_scopes_(size_) {}

bool AbortPolicy::FailIfStepLost(int rank, const Key& key, int64_t step) {
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

bool AbortPolicy::FailIfScopeEnded(int rank, const Key& key, int64_t step) {
  if (ended_scopes_.empty()) return false;
  ended_scopes_.Reopen(rank, key.name);
  for (const EndedScopes::Scope& scope : ended_scopes_.all()) {
    if (!scope.covers(key.name)) continue;
    if (matcher_->has_joined(scope.rank)) continue;  // nobody waits for it
    const Pending* const pending = matcher_->Find(key);
    if (pending != nullptr && pending->has(scope.rank)) {
      continue;  // the rank asked for it before it ended
    }
    const SharedStatus why = WillNotCome(key, scope.rank, scope.end.text);
    FailNew(key, rank, why);
    HitSteps(0, why, {{rank, step}});
    return true;
  }
  return false;
}

void AbortPolicy::FailNew(const Key& key, int rank, const SharedStatus& why) {
  const Pending* const pending = matcher_->Find(key);
  const int older = pending == nullptr ? 0 : pending->PlacesOf(rank);
  failures_.Add(key, rank, older, why, agreements_);
}

uint64_t AbortPolicy::Agree(const std::vector<int64_t>& steps) {
  step_aborts_.Correspond(steps);
  return ++agreements_;
}

void AbortPolicy::Disagree(Pending* pending, const std::vector<int64_t>& steps,
                           const Status& status) {
  const SharedStatus first = Share(status);
  std::vector<StepOfRank> lost;
  for (int rank = 0; rank < size_; ++rank) {
    if (!pending->has(rank)) continue;
    failures_.Add(pending->key, rank, 0, first, agreements_);
    lost.push_back({rank, steps[rank]});
  }
  matcher_->ClearFronts(pending);
  // TensorFlow aborts the step of an op that fails. Here all ranks' ops fail.
  const std::string text = "Its step was aborted: " + status.message();
  HitSteps(0,
           Share(status.cause() == nullptr ? PeerLost(text)
                                           : PeerLost(text, *status.cause())),
           std::move(lost));
}

void AbortPolicy::Withdraw(int rank, const Withdrawal& withdrawal) {
  const Key& key = withdrawal.key;
  if (step_aborts_.FindHit(rank, withdrawal.step) != nullptr) {
    // The call's step is lost already, and the peers know it.
    return;
  }
  const SharedStatus why = WhyAborted(rank, withdrawal);
  StepAborts::AbortId abort = step_aborts_.OldestFor(rank);
  if (abort == 0) abort = step_aborts_.Open(why);
  for (int other = 0; other < size_ && matcher_->joined_count() > 0; ++other) {
    if (matcher_->has_joined(other)) step_aborts_.Spare(other);
  }
  step_aborts_.AddKey(abort, key);
  Pending* const pending = matcher_->Find(key);
  if (withdrawal.step == 0 && pending != nullptr) {
    const int place = pending->PlaceOf(rank, 0);
    if (place >= 0) FailAt(pending, rank, place, why);
    matcher_->EraseIfEmpty(key);
  }
  HitSteps(abort, why, {{rank, withdrawal.step}});
  FailWaitingFor(abort, why, rank, key);
}

SharedStatus AbortPolicy::WhyAborted(int rank,
                                     const Withdrawal& withdrawal) const {
  // Other ranks may meet the same failure on the wire, before they hear of this
  // step or after. It must not matter which comes first.
  if (withdrawal.why.cause() != nullptr) return Share(withdrawal.why);
  const std::string& name = withdrawal.key.name;
  return Share(PeerLost(Quoted(name) + " failed because " +
                            NameRanks({job_ranks_[rank]}) +
                            " aborted its step: " + withdrawal.why.message(),
                        {CauseKind::kStepAborted, job_ranks_[rank], name}));
}

void AbortPolicy::WithdrawRefused(int rank) {
  std::vector<Withdrawal> refused;
  for (const auto& [key, pending] : *matcher_) {
    for (int place = 0; place < pending.PlacesOf(rank); ++place) {
      const Matcher::Waiting& waiting = *pending.At(rank, place);
      if (waiting.extra == nullptr || waiting.extra->error.ok()) continue;
      refused.push_back({key, waiting.step, waiting.extra->error});
    }
  }
  for (const Withdrawal& withdrawal : refused) Withdraw(rank, withdrawal);
}

void AbortPolicy::FailWaitingFor(StepAborts::AbortId abort,
                                 const SharedStatus& why, int rank,
                                 const Key& key) {
  Pending* const pending = matcher_->Find(key);
  if (pending == nullptr || pending->has(rank)) return;
  std::vector<StepOfRank> lost;
  for (int other = 0; other < size_; ++other) {
    if (!pending->has(other) || !step_aborts_.IsOpenFor(abort, other)) {
      continue;
    }
    const int64_t step = pending->fronts[other].step;
    if (step != 0) {
      lost.push_back({other, step});
    } else {
      FailAt(pending, other, 0, why);
      step_aborts_.Hit(abort, other, 0, why);
    }
  }
  HitSteps(abort, why, std::move(lost));
  matcher_->EraseIfEmpty(key);
}

void AbortPolicy::EndScope(int rank, const ScopeEnd& end) {
  ended_scopes_.Set(rank, end);
  if (end.text.empty()) return;  // open again
  const EndedScopes::Scope scope{rank, end};
  // Keys of that scope that others already wait for will not come either.
  std::vector<Key> keys;
  for (const auto& [key, pending] : *matcher_) {
    if (scope.covers(key.name) && !pending.has(rank)) keys.push_back(key);
  }
  for (const Key& key : keys) {
    FailScope(key, WillNotCome(key, rank, end.text));
  }
  ended_scopes_.ForgetIfAllEnded(end.name_prefix);
}

void AbortPolicy::FailScope(const Key& key, const SharedStatus& why) {
  Pending* const pending = matcher_->Find(key);
  if (pending == nullptr) return;  // another rank's step took it along
  std::vector<StepOfRank> lost;
  for (int rank = 0; rank < size_; ++rank) {
    if (!pending->has(rank)) continue;
    const int64_t step = pending->fronts[rank].step;
    if (step != 0) {
      lost.push_back({rank, step});
    } else {
      FailAt(pending, rank, 0, why);
    }
  }
  HitSteps(0, why, std::move(lost));
  matcher_->EraseIfEmpty(key);
}

SharedStatus AbortPolicy::WillNotCome(const Key& key, int rank,
                                      const std::string& text) const {
  return Share(PeerLost(Quoted(key.name) + " will not come from " +
                            NameRanks({job_ranks_[rank]}) + ": " + text,
                        {CauseKind::kScopeEnded, job_ranks_[rank], key.name}));
}

void AbortPolicy::FailAll(const Status& status) {
  const SharedStatus why = Share(status);
  std::vector<Key> keys;
  for (const auto& [key, pending] : *matcher_) {
    // Ranks may meet later, when they next have tensors on GPUs.
    if (key.name != kMeetingOfLanes) keys.push_back(key);
  }
  std::vector<StepOfRank> lost;
  for (const Key& key : keys) {
    Pending* const pending = matcher_->Find(key);
    for (int rank = 0; rank < size_; ++rank) {
      for (int place = pending->PlacesOf(rank) - 1; place >= 0; --place) {
        const int64_t step = pending->At(rank, place)->step;
        if (step != 0) {
          lost.push_back({rank, step});
        } else {
          FailAt(pending, rank, place, why);
        }
      }
    }
    matcher_->EraseIfEmpty(key);
  }
  HitSteps(0, why, std::move(lost));
}

void AbortPolicy::FailAt(Pending* pending, int rank, int place,
                         const SharedStatus& why) {
  failures_.Add(pending->key, rank, place, why, agreements_);
  matcher_->TakeOut(pending, rank, place);
}

void AbortPolicy::HitSteps(StepAborts::AbortId abort, const SharedStatus& why,
                           std::vector<StepOfRank> lost) {
  Swept swept;
  // A list, because a recursion would be 1000 deep with 1000 ranks.
  for (size_t i = 0; i < lost.size(); ++i) {
    const StepOfRank hit = lost[i];
    HitStep(abort, why, hit, &swept, &lost);
  }
}

void AbortPolicy::HitStep(StepAborts::AbortId abort, const SharedStatus& why,
                          const StepOfRank& hit, Swept* swept,
                          std::vector<StepOfRank>* lost) {
  const auto [rank, step] = hit;
  if (step == 0) return step_aborts_.Hit(abort, rank, 0, why);
  if (step_aborts_.FindHit(rank, step) != nullptr) return;
  step_aborts_.Hit(abort, rank, step, why);
  std::vector<Key> emptied;
  for (auto& [key, pending] : *matcher_) {
    for (int place = pending.PlacesOf(rank) - 1; place >= 0; --place) {
      if (pending.At(rank, place)->step != step) continue;
      step_aborts_.AddKey(abort, key);
      FailAt(&pending, rank, place, why);
      if (!swept->insert({&pending, place}).second) continue;
      SweepPlace(abort, why, &pending, place, rank, lost);
    }
    if (pending.ready == 0) emptied.push_back(key);
  }
  for (const Key& key : emptied) matcher_->EraseIfEmpty(key);
  const std::vector<int64_t> together = step_aborts_.Corresponding(rank, step);
  for (size_t other = 0; other < together.size(); ++other) {
    if (together[other] == 0) continue;
    lost->push_back({static_cast<int>(other), together[other]});
  }
}

void AbortPolicy::SweepPlace(StepAborts::AbortId abort, const SharedStatus& why,
                             Pending* pending, int place, int but,
                             std::vector<StepOfRank>* lost) {
  for (int other = 0; other < size_; ++other) {
    if (other == but) continue;
    const Matcher::Waiting* const waiting = pending->At(other, place);
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

}  // namespace hvd
