// SPDX-License-Identifier: Apache-2.0
// AbortPolicy: which submissions fail, and for which reason.
#ifndef HVD_CORE_CONTROL_ABORT_POLICY_H_
#define HVD_CORE_CONTROL_ABORT_POLICY_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/control/ended_scopes.h"
#include "core/control/failure_queue.h"
#include "core/control/matcher.h"
#include "core/control/message.h"
#include "core/control/step_aborts.h"
#include "core/request.h"
#include "core/status.h"

namespace hvd {

// A submission fails because its step is lost, because a rank has left the
// training loop of its key, because the ranks disagree, or because all wait for
// one another. A step is lost as a whole, and the peers' steps that wait for it
// are lost with it.
//
// It takes what fails out of the Matcher, and queues the failures for the log.
// A tensor that was agreed does not fail any more.
//
// Owner: the leader of a set. Background thread only. Ranks are ranks of the
// set, unless a name says job.
class AbortPolicy {
 public:
  // The matcher must outlive it.
  AbortPolicy(const std::vector<int>& job_ranks, Matcher* matcher);

  // True: the new submission, which the matcher does not have, has failed at
  // once. Its step is lost, or another rank has ended the scope of its key.
  bool FailIfDoomed(int rank, const Key& key, int64_t step) {
    return FailIfStepLost(rank, key, step) || FailIfScopeEnded(rank, key, step);
  }

  // All ranks have agreed on a tensor. `steps` are theirs. Returns how many
  // tensors they have agreed on.
  uint64_t Agree(const std::vector<int64_t>& steps);
  // The ranks disagree on the key. Fails its fronts, and their `steps`. Ranks
  // that have joined have no front.
  void Disagree(Matcher::Pending* pending, const std::vector<int64_t>& steps,
                const Status& status);

  // A rank has joined: aborts do not wait for it.
  void Spare(int rank) { step_aborts_.Spare(rank); }

  // A rank is about to join. Calls that it was refused abort their steps now.
  // Their keys would else be agreed on without the rank, and its peers would
  // never hear of the error.
  void WithdrawRefused(int rank);

  // A rank tells of its aborted step, or of its ended scope.
  void Withdraw(int rank, const Withdrawal& withdrawal);
  void EndScope(int rank, const ScopeEnd& end);

  // Fails all that the matcher has, on every rank.
  void FailAll(const Status& status);

  // Whether no submission fails at once, but those of lost steps.
  bool is_calm() const { return step_aborts_.quiet() && ended_scopes_.empty(); }
  bool IsLost(int rank, int64_t step) const {
    return step_aborts_.FindHit(rank, step) != nullptr;
  }

  // Whether a step has ever been lost. Only a rank whose step was lost submits
  // a key that is agreed and not in the log yet.
  bool any_lost() const { return step_aborts_.any(); }
  // Whether there are failures that are not in the log yet.
  bool has_failures() const { return !failures_.empty(); }
  // The next of them, with the names of all keys. Nothing when all must wait.
  std::optional<Failure> TakeFailure(
      const FailureQueue::IsHeldBack& held_back) {
    return failures_.Take(held_back);
  }

 private:
  using Pending = Matcher::Pending;

  struct StepOfRank {
    int rank;
    int64_t step;
  };

  bool FailIfStepLost(int rank, const Key& key, int64_t step);
  bool FailIfScopeEnded(int rank, const Key& key, int64_t step);
  // Fails the ranks that wait for a key of a scope that another rank has ended.
  void FailScope(const Key& key, const SharedStatus& why);
  // What a step fails with that waits for the rank's aborted one: the failure
  // that aborted it, if its cause is known. Else that it was aborted.
  SharedStatus WhyAborted(int rank, const Withdrawal& withdrawal) const;
  SharedStatus WillNotCome(const Key& key, int rank,
                           const std::string& text) const;

  // Fails a submission and removes it.
  void FailAt(Pending* pending, int rank, int place, const SharedStatus& why);
  // Fails a new submission, which is not in the matcher.
  void FailNew(const Key& key, int rank, const SharedStatus& why);
  // Fails all submissions of these steps. Steps of other ranks that wait for
  // one of these submissions are lost too, and so on.
  void HitSteps(StepAborts::AbortId abort, const SharedStatus& why,
                std::vector<StepOfRank> lost);
  // Fails one of these steps, and adds to `lost` the steps that wait for it.
  // `swept` holds the keys and places whose waiting ranks are in `lost`.
  using Swept = std::set<std::pair<const Pending*, int>>;
  void HitStep(StepAborts::AbortId abort, const SharedStatus& why,
               const StepOfRank& hit, Swept* swept,
               std::vector<StepOfRank>* lost);
  // Adds to `lost` the steps of all ranks `but` one that have submitted the key
  // at that place. Submissions outside steps fail at once.
  void SweepPlace(StepAborts::AbortId abort, const SharedStatus& why,
                  Pending* pending, int place, int but,
                  std::vector<StepOfRank>* lost);
  // Fails the ranks that wait for a key which `rank` has withdrawn or will not
  // submit.
  void FailWaitingFor(StepAborts::AbortId abort, const SharedStatus& why,
                      int rank, const Key& key);

  const std::vector<int> job_ranks_;
  const int size_;
  Matcher* const matcher_;
  FailureQueue failures_;
  StepAborts step_aborts_;
  EndedScopes ended_scopes_;
  uint64_t agreements_ = 0;  // so far
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_ABORT_POLICY_H_
