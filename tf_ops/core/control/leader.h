// SPDX-License-Identifier: Apache-2.0
// Leader: decides, once and for all ranks of a set, what travels and when.
#ifndef HVD_CORE_CONTROL_LEADER_H_
#define HVD_CORE_CONTROL_LEADER_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "core/control/abort_policy.h"
#include "core/control/agreement.h"
#include "core/control/batch_planner.h"
#include "core/control/host_matcher.h"
#include "core/control/host_tree.h"
#include "core/control/matcher.h"
#include "core/control/message.h"
#include "core/control/set_changes.h"
#include "core/control/signature_numbers.h"
#include "core/control/stall_finder.h"
#include "core/host_map.h"
#include "core/options.h"
#include "core/span.h"

namespace hvd {

// One rank of each set has a Leader, beside its Negotiator. The Negotiator
// hands it the reports of all members, its own rank's included. It applies
// the records that Next returns, and sends them to the members.
//
// A report goes to the Matcher, unless the AbortPolicy fails it. A key that all
// ranks have submitted goes to the BatchPlanner, or fails. Next turns what
// these two hold into records, with the SignatureNumbers. The StallFinder sees
// what the Matcher still has. Where ranks report by host, a HostMatcher stands
// in front of the Matcher.
//
// The Leader reads no clock and knows no wire. Background thread only. Ranks
// are ranks of the set, unless a name says job.
class Leader {
 public:
  using Clock = std::chrono::steady_clock;

  // `hosts`: of the set's ranks. Without any they are on one.
  Leader(std::vector<int> job_ranks, const Options& options,
         HostMap hosts = {});

  // Not Ok: the report makes no sense. There is a bug, or that rank runs
  // another build.
  Status Handle(int rank, const Report& report, Clock::time_point now);

  // The same of a host, from the rank that gathers for it. In a set with a
  // HostTree there are no other reports. leader_hosts.cc
  Status HandleHost(int gatherer, HostReport report, Clock::time_point now);

  // The fusion limit, the chunk size and the number of batches in flight from
  // now on.
  void Tune(const Tuning& tuning);

  // From now on `changes` decides which process sets come and go. Of the global
  // set alone.
  void LeadSets(std::unique_ptr<SetChanges> changes);

  // The next record of the log. `in_flight` batches are on the wire. When that
  // is the limit, tensors are held back, and those that are agreed meanwhile
  // travel together.
  std::optional<LogRecord> Next(int in_flight);

  // Signatures that only a rank that is behind may still mean.
  size_t retired_count() const { return numbers_.retired_count(); }

  // What users must be told. Where every rank has waited for another for
  // HVD_STALL_SHUTDOWN_S, it also fails what they wait for.
  using Watched = hvd::Watched;
  Watched Watch(Clock::time_point now);

 private:
  using Pending = Matcher::Pending;
  using Waiting = Matcher::Waiting;

  // leader_submissions.cc
  Status HandleItem(int rank, const Submission& submission,
                    Clock::time_point now);
  Status HandleItem(int rank, const CachedSubmissions& cached,
                    Clock::time_point now);
  // Takes a tensor's first dimensions from the begin of `dims`, if the log
  // tells them. They are kept in `waiting`.
  Status TakeFirstDims(const Signature& signature, Span<int64_t>* dims,
                       Waiting* waiting) const;
  // False when the new submission has failed at once.
  bool Admit(int rank, const Key& key, int64_t step, Clock::time_point now);
  // Adds a submission, which has its signature. Decides on the key when all
  // ranks have submitted it.
  void Add(int rank, Pending* pending, Waiting waiting);

  Status HandleItem(int rank, const Withdrawal& withdrawal,
                    Clock::time_point now);
  Status HandleItem(int rank, const ScopeEnd& end, Clock::time_point now);
  Status HandleItem(int rank, const Join& join, Clock::time_point now);
  Status HandleItem(int rank, const Unjoin& unjoin, Clock::time_point now);
  // leader_sets.cc
  Status HandleItem(int rank, const SetRequest& request, Clock::time_point now);
  Status HandleItem(int rank, const SetAnswer& answer, Clock::time_point now);
  // Refuses a call that only ranks in a join have not made.
  void RefuseSetCallOfJoined();
  std::optional<SetChange> NextSetChange();
  void FindWaitingSetCall(Clock::time_point now, Watched* watched);

  // leader_hosts.cc
  Status HandleHostItem(int host, HostSubmissions* item, Clock::time_point now);
  Status HandleHostItem(int host, HostMemberItem* member,
                        Clock::time_point now);
  Status CheckOfHost(int host, const std::vector<int>& ranks) const;
  // Whether the whole host submits, and nothing is to fail or is absent.
  bool IsUsual(int host, const std::vector<int>& ranks,
               const std::vector<int64_t>& steps) const;
  // Where the number may wait for other hosts. Null: in the matcher.
  Result<HostMatcher::Partial*> FindPartial(int host, SignatureNumber number,
                                            Clock::time_point now);
  // All hosts have submitted it.
  void Agree(SignatureNumber number, const HostMatcher::Partial& partial);
  // Before anything else happens to a number, or to any.
  void MoveToMatcher(SignatureNumber number);
  void MoveToMatcher(const Key& key);
  void MoveAllToMatcher();
  // What has waited for so long that others may want to know.
  void MoveOldToMatcher(Clock::time_point now);
  void AddReporters(Stall* stall) const;

  // `source`: a rank, or a host where there is a HostTree.
  Status CheckLogSeen(int source, uint64_t log_seen) const;
  void NoteLogSeen(int source, uint64_t log_seen);

  // Decides on keys that only wait for ranks that have joined.
  void DecideWithoutJoined();
  // The ranks that a complete key is agreed without. Null: none.
  std::shared_ptr<const std::vector<int>> AbsentFrom(const Pending& pending);
  // Decides on a key that all ranks have submitted. Returns `pending`, or null
  // when it is gone: the ranks disagree, and their steps failed with it.
  Pending* Decide(Pending* pending);

  // Plans a tensor that has its key, number, signature and absent ranks. The
  // ranks' steps are in steps_.
  void PlanAgreed(Agreed agreed);

  // The first failure that may go into the log. A failure waits while an older
  // agreement on its key is held back: a member applies each record to the
  // oldest of its submissions.
  std::optional<Failure> NextFailure();
  // Every member has applied the log up to some record.
  void ForgetRetired();

  const std::vector<int> job_ranks_;
  const int size_;
  const HostTree tree_;
  const Options options_;
  Tuning tuning_;                      // the values in use
  std::optional<Tuning> tuning_news_;  // not yet in the log
  std::deque<LogRecord> join_news_;    // not yet in the log
  // The latest answer of AbsentFrom.
  std::shared_ptr<const std::vector<int>> absent_;

  HostMatcher host_matcher_;
  Matcher matcher_;
  AbortPolicy aborts_;
  BatchPlanner planner_;
  SignatureNumbers numbers_;
  StallFinder stalls_;
  std::unique_ptr<SetChanges> set_changes_;  // null: not of the global set
  double next_set_warning_s_ = 0;  // of a call that waits; 0: none waits
  // Used by Decide, by rank. Kept for their memory.
  std::vector<RankRequest> requests_;
  std::vector<int64_t> steps_;

  uint64_t log_number_ = 0;         // of the last record given out
  std::vector<uint64_t> log_seen_;  // by rank, or by host
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_LEADER_H_
