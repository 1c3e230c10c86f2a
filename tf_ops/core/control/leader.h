// SPDX-License-Identifier: Apache-2.0
// Leader: decides, once and for all ranks of a set, what travels and when.
#ifndef HVD_CORE_CONTROL_LEADER_H_
#define HVD_CORE_CONTROL_LEADER_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/control/agreement.h"
#include "core/control/autotuner.h"
#include "core/control/failure_queue.h"
#include "core/control/message.h"
#include "core/control/recycling_map.h"
#include "core/control/response_cache.h"
#include "core/control/stall.h"
#include "core/control/step_aborts.h"
#include "core/options.h"

namespace hvd {

// One rank of each set has a Leader, beside its Negotiator. The Negotiator
// hands it the reports of all members, its own rank's included. It applies
// the records that Next returns, and sends them to the members.
//
// The Leader reads no clock and knows no wire. Background thread only. Ranks
// are ranks of the set, unless a name says job.
class Leader {
 public:
  using Clock = std::chrono::steady_clock;

  // `cache` is the cache of the leader's own rank.
  Leader(std::vector<int> job_ranks, const Options& options,
         ResponseCache* cache);

  // Not Ok: the report makes no sense. There is a bug, or that rank runs
  // another build.
  Status Handle(int rank, const Report& report, Clock::time_point now);

  // From now on `autotuner` chooses the fusion limit, the chunk size and the
  // number of batches in flight.
  void Autotune(std::unique_ptr<Autotuner> autotuner);

  // The next record of the log. The caller carries it out before it asks again.
  // `in_flight` batches are on the wire. When that is the limit, tensors are
  // held back, and those that are agreed meanwhile travel together.
  std::optional<LogRecord> Next(int in_flight, Clock::time_point now);

  // What users must be told.
  struct Watched {
    std::vector<std::string> warnings;
    std::vector<Stall> stalls;  // a warning is due for each
    // Set: the job has waited for HVD_STALL_SHUTDOWN_S and must fail.
    std::optional<Stall> lost;
  };
  // Where every rank has waited for another for HVD_STALL_SHUTDOWN_S, it also
  // fails what they wait for.
  Watched Watch(Clock::time_point now);

  // Whether any rank waits for another, so that Watch has something to do.
  bool waiting() const { return !pending_.empty(); }

 private:
  // The part of a submission that few submissions have.
  struct Extra {
    std::shared_ptr<const Signature> signature;  // null: Pending's is the same
    Shape first_dims;  // dimension 0 of each shape, where the log has it
    Status error;
  };
  // One rank's submission of a key. It is small, because each pending key has
  // one for each rank.
  struct Waiting {
    // Null: the rank has not submitted the key. Else it points to Extra's or
    // to Pending's. Pending's may have the first dimensions of another rank.
    const Signature* signature = nullptr;
    int64_t step = 0;
    std::unique_ptr<Extra> extra;  // null: the submission has none of it
  };
  // A key that some ranks have submitted and others have not. An erased one
  // leaves the memory of its vectors to the next.
  struct Pending {
    Key key;
    // As the first rank asked for it. Ranks that ask for the same share it.
    std::shared_ptr<const Signature> signature;
    CacheId id = 0;               // its number in pending_by_id_; 0: none
    std::vector<Waiting> fronts;  // by rank: the oldest submission
    // Further submissions of ranks whose front still waits, in order. A vector,
    // because it is hardly ever used, and an empty deque allocates twice.
    std::vector<std::pair<int, Waiting>> later;
    int ready = 0;  // how many fronts there are
    Clock::time_point since;
    double next_warning_s = 0;  // seconds after `since`
  };
  struct Agreed {
    Key key;
    CacheId id = 0;  // the number that a rank submitted it under; 0: none
    std::shared_ptr<const Signature> signature;  // as the leader's rank has it
    std::vector<std::vector<int64_t>> first_dims;
    int64_t bytes = 0;
    uint64_t number = 0;  // the first agreement has 1
  };
  struct StepOfRank {
    int rank;
    int64_t step;
  };
  struct EndedScope {
    int rank;
    ScopeEnd end;
  };
  struct Retired {
    ResponseCache::Remembered remembered;
    uint64_t number;  // of the log record that evicted it
  };

  Status HandleItem(int rank, const Submission& submission,
                    Clock::time_point now);
  Status HandleItem(int rank, const CachedSubmissions& cached,
                    Clock::time_point now);
  Status HandleItem(int rank, const Withdrawal& withdrawal,
                    Clock::time_point now);
  Status HandleItem(int rank, const ScopeEnd& end, Clock::time_point now);

  // What a member may still mean by that number. Null: nothing.
  const ResponseCache::Remembered* Recall(CacheId id) const;
  // False when the new submission has failed at once.
  bool Admit(int rank, const Key& key, int64_t step, Clock::time_point now);
  // Both fail the new submission, and return true, where its step is lost or
  // where another rank has ended the scope of its key.
  bool FailIfDoomed(int rank, const Key& key, int64_t step);
  bool FailIfScopeEnded(int rank, const Key& key, int64_t step);
  // Fails the ranks that wait for a key of a scope that another rank has ended.
  void FailScope(const Key& key, const SharedStatus& why);
  void ForgetScopeIfAllEnded(const std::string& name_prefix);
  SharedStatus WillNotCome(const Key& key, int rank,
                           const std::string& text) const;
  Pending* FindOrAddPending(const Key& key, Clock::time_point now);
  // `kept`: where the same signature is kept already, or null.
  void SetSignature(Waiting* waiting, Pending* pending,
                    const Signature& signature,
                    const std::shared_ptr<const Signature>& kept);
  // Adds a submission, which has its signature. Decides on the key when all
  // ranks have submitted it.
  void Add(int rank, Pending* pending, Waiting waiting);
  // Decides on a key that all ranks have submitted. Returns `pending`, or null
  // when it is gone: the ranks disagree, and their steps failed with it.
  Pending* Decide(Pending* pending);
  // Fails a key that the ranks disagree on, and the steps in `steps_`.
  void FailOnAll(Pending* pending, const Status& status);
  // Removes the fronts. Later submissions take their place.
  void ClearFronts(Pending* pending);
  void EraseIfEmpty(const Key& key);

  // A rank's submissions of a key have places: 0 is its front, 1 the first of
  // its later ones. PlacesOf is their number.
  static int PlacesOf(const Pending& pending, int rank);
  // Null: the rank has no submission at that place.
  static Waiting* At(Pending* pending, int rank, int place);
  // The place of the last submission of that step. -1: there is none.
  static int PlaceOf(Pending* pending, int rank, int64_t step);
  // Removes a submission. Those behind it move up.
  static void TakeOut(Pending* pending, int rank, int place);
  // Fails a submission and removes it.
  void FailAt(Pending* pending, int rank, int place, const SharedStatus& why);
  // Fails a new submission, which is not in `pending_`.
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

  // Tells the autotuner when the wire is idle, and takes over its new values.
  void Tune(int in_flight, Clock::time_point now);
  // The first failure that may go into the log. A failure waits while an older
  // agreement on its key is held back: a member applies each record to the
  // oldest of its submissions.
  std::optional<Failure> NextFailure();
  // Moves what the wire has room for from agreed_ to planned_.
  void Plan(int in_flight);
  // How many of agreed_ may be planned together. A key may not be there twice,
  // because batches may leave in another order than their tensors were agreed.
  size_t DifferentKeys() const;
  AgreedBatch MakeBatch(std::vector<Agreed> tensors);
  // The number that every member knows the tensor by. 0: none.
  CacheId NumberOf(const Agreed& agreed) const;
  Eviction MakeEviction();
  void Retire(CacheId id);
  void ForgetRetired();
  std::string RankName(int rank) const;

  void FindStalls(Clock::time_point now, Watched* watched);
  // Whether every rank waits for another one, and nothing has been submitted
  // for HVD_MISMATCH_WARNING_S.
  bool AllWaitForOthers(Clock::time_point now) const;
  std::string MismatchText(Clock::time_point now) const;
  // Fails everything that waits, on every rank.
  void FailMismatch(Clock::time_point now);

  const std::vector<int> job_ranks_;
  const int size_;
  const Options options_;
  ResponseCache* const cache_;
  Tuning tuning_;                         // the values in use
  std::unique_ptr<Autotuner> autotuner_;  // null: they change no more
  std::optional<Tuning> tuning_news_;     // not yet in the log

  RecyclingMap<Key, Pending, KeyHash> pending_;
  // The same elements, for the many submissions that come as a number.
  RecyclingMap<CacheId, Pending*> pending_by_id_;
  std::vector<Agreed> agreed_;
  FailureQueue failures_;
  std::deque<std::vector<Agreed>> planned_;
  std::vector<EndedScope> ended_scopes_;
  StepAborts step_aborts_;
  // Used by Decide, by rank. Kept for their memory.
  std::vector<RankRequest> requests_;
  std::vector<int64_t> steps_;

  uint64_t agreements_ = 0;  // so far
  CacheId next_id_ = 1;
  uint64_t log_number_ = 0;  // of the last record given out
  std::vector<uint64_t> log_seen_;
  std::map<CacheId, Retired> retired_;

  Clock::time_point last_submission_;
  bool mismatch_warned_ = false;
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_LEADER_H_
