// SPDX-License-Identifier: Apache-2.0
// StepAborts: which ranks' steps are lost because one rank aborted its own.
#ifndef HVD_CORE_CONTROL_STEP_ABORTS_H_
#define HVD_CORE_CONTROL_STEP_ABORTS_H_

#include <cstdint>
#include <deque>
#include <list>
#include <unordered_set>
#include <vector>

#include "core/request.h"
#include "core/status.h"

namespace hvd {

// A TensorFlow step fails as a whole. When one rank's step is aborted the
// other ranks' running step would wait for ever for the tensors that will not
// come, so it is "hit" too. Steps carry numbers that mean something on their
// own rank only; which of them belong together is known from
//   - tensors that were agreed (all ranks' steps at that moment), or else
//   - the keys of the aborted step: the first time that a rank not yet hit
//     submits one of them, it does so in the step that belongs to the abort.
// A step is hit at most once, so one abort cannot spill into later steps.
//
// Belongs to the leader of a set. Background thread only. Ranks are the set's.
class StepAborts {
 public:
  explicit StepAborts(int size) : size_(size), hits_(size) {}

  // A tensor was agreed in these steps, one per rank.
  void Correspond(const std::vector<int64_t>& steps);

  // The steps, by rank, that are known to belong to this step of `rank`; 0
  // where unknown. Empty when none is.
  std::vector<int64_t> Corresponding(int rank, int64_t step) const;

  // Why this step was hit; null when it was not, and for step 0.
  SharedStatus FindHit(int rank, int64_t step) const;

  // Opens an abort that has hit no rank yet. It closes when it has hit all.
  // The id 0 is never open.
  using AbortId = uint64_t;
  AbortId Open(SharedStatus why);

  // The oldest open abort that has not hit the rank. 0: none. A step that the
  // rank aborts itself counts as its part in this abort, because ranks often
  // lose the same step for different reasons.
  AbortId OldestFor(int rank) const;

  // Whether this abort is open, and the rank not hit by it yet.
  bool IsOpenFor(AbortId id, int rank) const;

  // Notes that the step of `rank` is hit, as its part in the abort. The abort
  // may be closed already.
  void Hit(AbortId id, int rank, int64_t step, const SharedStatus& why);

  // The rank has joined, so it has no step to lose. It counts as hit by all
  // aborts that are open.
  void Spare(int rank);

  // A rank that the open abort has not hit is hit when it submits this key.
  void AddKey(AbortId id, const Key& key);

  // The open abort that the rank runs into when it submits this key. 0: none.
  AbortId Find(int rank, const Key& key, SharedStatus* why) const;

  bool quiet() const { return open_.empty(); }

  // Whether a step has ever been hit.
  bool any() const { return any_; }

 private:
  struct OpenAbort {
    bool has_hit(int rank) const { return !not_hit[rank]; }

    AbortId id;
    SharedStatus why;
    std::vector<bool> not_hit;  // by rank
    int left = 0;               // of these
    std::unordered_set<Key, KeyHash> keys;
  };
  struct HitStep {
    int64_t step;
    SharedStatus why;
  };
  // More than the steps a rank has running at once; older ones are forgotten.
  static constexpr size_t kRemembered = 16;

  const int size_;
  bool any_ = false;
  AbortId next_id_ = 1;
  std::list<OpenAbort> open_;
  std::vector<std::deque<HitStep>> hits_;  // by rank
  std::deque<std::vector<int64_t>> corresponding_;
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_STEP_ABORTS_H_
