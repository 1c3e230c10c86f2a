// SPDX-License-Identifier: Apache-2.0
// Leader: decides, once and for all ranks of a set, what travels and when.
#ifndef HVD_CORE_LEADER_H_
#define HVD_CORE_LEADER_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/agreement.h"
#include "core/autotuner.h"
#include "core/message.h"
#include "core/options.h"
#include "core/recycling_map.h"
#include "core/response_cache.h"
#include "core/stall.h"
#include "core/step_aborts.h"

namespace hvd {

// Exists on one rank of each set, beside that rank's Negotiator, which hands
// it every member's reports (its own too) and carries out and sends on the
// records that Next gives. Knows no clock but what it is told, and no wire.
// Background thread only. Ranks are the set's unless a name says job.
class Leader {
 public:
  using Clock = std::chrono::steady_clock;

  // `cache` is the cache of the leader's own rank.
  Leader(std::vector<int> job_ranks, const Options& options,
         ResponseCache* cache);

  // Not Ok: the report makes no sense (a bug, or another build on that rank).
  Status Handle(int rank, const Report& report, Clock::time_point now);

  // From now on `autotuner` chooses the values that batches are made by.
  void Autotune(std::unique_ptr<Autotuner> autotuner);

  // The next record of the log; carry it out before asking again. Batches are
  // held back while `in_flight` batches are on the wire, so that what is
  // agreed meanwhile travels together.
  std::optional<LogRecord> Next(int in_flight, Clock::time_point now);

  // What people must be told.
  struct Watched {
    std::vector<std::string> warnings;  // one text each
    std::vector<Stall> stalls;          // a warning is due
    // The job must fail: it has waited for HVD_STALL_SHUTDOWN_S.
    std::optional<Stall> lost;
  };
  // Also fails tensors that can never be agreed because every rank waits in one
  // eager call.
  Watched Watch(Clock::time_point now);

  // Whether Watch has something to look at.
  bool waiting() const { return !pending_.empty(); }

 private:
  // What few submissions have.
  struct Extra {
    std::shared_ptr<const Signature> signature;  // null: it shares Pending's
    Shape first_dims;  // allgather: dimension 0 of each shape
    Status error;
  };
  // One rank's submission of a key. Small: there is one for each rank.
  struct Waiting {
    // Null: none. Extra's or Pending's, whose first dimensions are another
    // rank's.
    const Signature* signature = nullptr;
    int64_t step = 0;
    std::unique_ptr<Extra> extra;  // null: nothing of it
  };
  // In pending_ while any rank waits; erased ones leave their vectors' memory.
  struct Pending {
    Key key;
    // What was first asked for; others that ask for the same share it.
    std::shared_ptr<const Signature> signature;
    CacheId id = 0;  // of key and signature, in pending_by_id_; 0: none
    std::vector<Waiting> fronts;  // by rank
    // Further submissions of a rank whose front still waits; in order. Hardly
    // ever any, and an empty deque would cost two allocations for each tensor.
    std::vector<std::pair<int, Waiting>> later;
    int ready = 0;
    Clock::time_point since;
    double next_warning_s = 0;  // after `since`
  };
  struct Agreed {
    Key key;
    CacheId id = 0;  // that a rank submitted it under; 0: none
    std::shared_ptr<const Signature> signature;  // the leader's own
    std::vector<std::vector<int64_t>> first_dims;
    int64_t bytes = 0;
    uint64_t decision = 0;
  };
  struct Failed {
    Failure failure;
    uint64_t decision;
  };
  struct EndedScope {
    int rank;
    ScopeEnd end;
  };
  struct Retired {
    ResponseCache::Remembered remembered;
    uint64_t number;  // of the record that evicted it
  };

  Status HandleItem(int rank, const Submission& submission,
                    Clock::time_point now);
  Status HandleItem(int rank, const CachedSubmissions& cached,
                    Clock::time_point now);
  Status HandleItem(int rank, const Withdrawal& withdrawal,
                    Clock::time_point now);
  Status HandleItem(int rank, const ScopeEnd& end, Clock::time_point now);

  // What a member may still call by that number; null: unknown.
  const ResponseCache::Remembered* Recall(CacheId id) const;
  // False when the submission fails at once.
  bool Admit(int rank, const Key& key, int64_t step, Clock::time_point now);
  // True when the submission is doomed: it is then failed.
  bool FailIfDoomed(int rank, const Key& key, int64_t step);
  bool FailIfScopeEnded(int rank, const Key& key, int64_t step);
  // Why a key will not come from a rank that has ended a scope.
  Cause ScopeEnded(int rank, const Key& key) const;
  void ForgetScopeIfAllEnded(const std::string& name_prefix);
  Pending* FindOrAddPending(const Key& key, Clock::time_point now);
  // `kept`: the same signature, where it is kept already; or null.
  void SetSignature(Waiting* waiting, Pending* pending,
                    const Signature& signature,
                    const std::shared_ptr<const Signature>& kept);
  // With the signature in `waiting`; decides when all ranks wait.
  void Add(int rank, Pending* pending, Waiting waiting);
  // Of a key that every rank waits for. Returns it again; null: it is gone,
  // because the ranks disagree and the failure took others along.
  Pending* Decide(Pending* pending);
  // Decide's other half, in the steps that it has found.
  void FailOnAll(Pending* pending, const Status& status);
  // Empties the fronts and lets later submissions take their place.
  void ClearFronts(Pending* pending);
  void EraseIfEmpty(const Key& key);

  void Fail(const Key& key, std::vector<int> ranks, Status status);
  // Fails every submission of that step and what they drag along.
  void HitStep(StepAborts::AbortId abort, const Status& why, int rank,
               int64_t step);
  // Fails who waits for a key that the rank has withdrawn, or never submitted.
  void FailWaitingFor(StepAborts::AbortId abort, const Status& why, int rank,
                      const Key& key);
  // Takes the rank's submission of the key out, if it belongs to the step.
  bool TakeOut(Pending* pending, int rank, int64_t step);

  // Tells the autotuner how things stand, and takes up what it changes.
  void Tune(int in_flight, Clock::time_point now);
  // The first failure that may be told. A rank takes what the log says of a key
  // for the oldest of its submissions of it, which may be an agreed one that is
  // still held back here: its step was aborted and the next one failed since.
  std::optional<Failure> NextFailure();
  bool HeldBackSince(const Key& key, uint64_t decision) const;
  // Moves what fits on the wire from agreed_ to planned_.
  void Plan(int in_flight);
  // How many of agreed_ may be planned together: no key twice, for batches may
  // leave in another order than their tensors were agreed in.
  size_t DifferentKeys() const;
  AgreedBatch MakeBatch(std::vector<Agreed> tensors);
  // The number that every member knows it by; 0: none.
  CacheId NumberOf(const Agreed& agreed) const;
  Eviction MakeEviction();
  void Retire(CacheId id);
  void ForgetRetired();
  std::string RankName(int rank) const;

  void FindStalls(Clock::time_point now, Watched* watched);
  void WarnOfMismatch(Clock::time_point now,
                      std::vector<std::string>* warnings);
  // `waits`: by rank, what it waits for.
  std::string LikelyPairs(
      const std::vector<std::vector<const Pending*>>& waits) const;

  const std::vector<int> job_ranks_;
  const int size_;
  const Options options_;
  ResponseCache* const cache_;
  Tuning tuning_;                         // what batches are made by now
  std::unique_ptr<Autotuner> autotuner_;  // null: they do not change any more
  std::optional<Tuning> tuning_news_;     // not yet in the log

  RecyclingMap<Key, Pending, KeyHash> pending_;
  // The same, for the many submissions that come under a number.
  RecyclingMap<CacheId, Pending*> pending_by_id_;
  std::vector<Agreed> agreed_;
  std::deque<Failed> failures_;
  std::deque<std::vector<Agreed>> planned_;
  std::vector<EndedScope> ended_scopes_;
  StepAborts step_aborts_;
  // Decide's, by rank: kept for their memory.
  std::vector<RankRequest> requests_;
  std::vector<int64_t> steps_;

  uint64_t decisions_ = 0;  // made so far: to agree, or to fail
  CacheId next_id_ = 1;
  uint64_t log_number_ = 0;  // of the last record given out
  std::vector<uint64_t> log_seen_;
  std::map<CacheId, Retired> retired_;

  Clock::time_point last_submission_;
  bool mismatch_warned_ = false;
};

}  // namespace hvd

#endif  // HVD_CORE_LEADER_H_
