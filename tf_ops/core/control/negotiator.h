// SPDX-License-Identifier: Apache-2.0
// Negotiator: one rank's side of a process set's control plane.
#ifndef HVD_CORE_CONTROL_NEGOTIATOR_H_
#define HVD_CORE_CONTROL_NEGOTIATOR_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/control/host_tree.h"
#include "core/control/leader.h"
#include "core/control/log_sender.h"
#include "core/control/message.h"
#include "core/control/recycling_map.h"
#include "core/control/report_gatherer.h"
#include "core/control/response_cache.h"
#include "core/host_map.h"
#include "core/options.h"
#include "core/ready_batch.h"
#include "core/request.h"

namespace hvd {

class Trace;

// A change, and the record of the global set's log that it was.
struct LoggedChange {
  SetChange change;
  uint64_t log_number = 0;
};

// Keeps this rank's entries from Submit until the log decides on them. Exactly
// one log record answers each submission, and takes its entry out.
//
// The first rank of the set has the Leader inside. In a set with a HostTree the
// first rank of each host has a ReportGatherer. A Negotiator sends nothing
// and executes nothing itself: TakeMessages hands over what is to be sent, and
// TakeReady what is to be executed. Background thread only. Ranks are ranks of
// the set.
class Negotiator {
 public:
  using Clock = std::chrono::steady_clock;

  // `most_chunk_bytes`: the largest chunk that this rank's wire has memory for.
  // `hosts`: of the set's ranks. Without any they are on one.
  Negotiator(int serial, int rank, std::vector<int> job_ranks,
             const Options& options, int64_t most_chunk_bytes,
             HostMap hosts = {});

  // Called on the leader, before anything is submitted.
  void LeadSets(std::unique_ptr<SetChanges> changes);
  // Called on the leader: all ranks use these values from some record on.
  void Tune(const Tuning& tuning);

  // Gets what happens to entries. Null: nobody does. Users call the set by
  // `id`.
  void TellTo(Trace* trace, int id) {
    trace_ = trace;
    set_id_ = id;
  }

  void Submit(EntryPtr entry);
  // This rank has no more to submit. The call is done once all have joined.
  void Join(JoinCallPtr call);
  // Fails the entry here, and tells the peers of the aborted step. False when
  // the log has decided on the entry. It may be on the wire then.
  bool Cancel(uint64_t ticket, const Status& why);
  void AbortStep(const Key& key, int64_t step, const Status& why);
  void EndScope(const std::string& name_prefix, const std::string& text);
  // Tells the leader of the global set. Does nothing once the set has ended.
  void Tell(ReportItem item);
  // The set has been removed. Its leader ends the log: what is agreed by then
  // still travels, and all else fails with `why` on every member.
  void Close(const Status& why);

  // What has come from the member `rank`: reports to the leader or a gatherer,
  // host reports to the leader, the log from upper() to all others. Not Ok: it
  // makes no sense.
  Status HandleReport(int rank, const Report& report, Clock::time_point now);
  Status HandleHostReport(int rank, HostReport report, Clock::time_point now);
  Status HandleLog(const LogMessage& log);
  // The rank that this one reports to, and gets the log from.
  int upper() const { return tree_.upper(); }

  // Hands this pass' submissions to the leader, and lets it decide. `in_flight`
  // batches are on the wire. Those that TakeReady still has count too. True if
  // anything happened. Not Ok for a bug.
  Result<bool> Advance(int in_flight, Clock::time_point now);
  // Advance must be called then, even if nothing happens. Nothing: never.
  std::optional<Clock::time_point> due() const;
  // What the log has brought and is to be executed next. Nothing: no more. All
  // of it must be taken before the next Cancel: an entry in it is neither here
  // nor on the wire.
  std::optional<ReadyItem> TakeReady();
  // Changes of process sets that the log has brought. Of the global set alone.
  std::vector<LoggedChange> TakeSetChanges();
  std::vector<OutgoingMessage> TakeMessages();
  bool has_messages() const { return !outgoing_.empty(); }
  // What the leader has to tell. Other ranks return nothing.
  Leader::Watched Watch(Clock::time_point now);
  // Appends what this rank's user has asked for and the log has not decided on.
  void AppendWaiting(std::vector<std::string>* names) const;

  // A member has ended. It took part up to that record. Later records are not
  // applied. Once this rank has seen that record, what is left fails with
  // `why`. So does what is submitted from now on.
  void EndAt(uint64_t log_number, const Status& why);
  // Fails everything at once, and takes no part in any later record.
  void FailAll(const Status& why);
  // Fails everything at once. If a late record agrees on some of it, this rank
  // still takes part without results, because other members may wait for it.
  void AnswerAll(const Status& why);

  uint64_t log_seen() const { return log_seen_; }
  // How many signatures only a rank that is behind may still mean. Only the
  // leader knows any.
  size_t retired_count() const {
    return leader_ == nullptr ? 0 : leader_->retired_count();
  }
  // The last record that this rank took part in. Behind FailAll it takes part
  // in none, but still counts them.
  uint64_t log_taken() const { return log_taken_; }
  // Nobody here waits for an answer.
  bool idle() const {
    return (outstanding_.empty() && joins_.empty()) || is_answered_;
  }
  // The log has not answered all joins of this rank.
  bool has_joins() const { return !joins_.empty(); }
  // A call of hvd.join() waits here.
  bool is_joining() const {
    return !joins_.empty() && joins_.back() != nullptr;
  }
  bool has_ended() const { return !ended_.ok(); }
  // Why, or Ok.
  const Status& ended() const { return ended_; }
  // All that was submitted has been answered, and so is what comes.
  bool is_answered() const { return is_answered_; }
  // It takes no part in any later record.
  bool is_closed() const { return is_closed_; }

 private:
  // The entries of one key, the oldest first. All but the last are cancelled.
  using Queue = std::vector<Outstanding>;

  // The failure of one entry, from the reason why its set has ended.
  static Status FailureOf(const std::string& name, const Status& why);
  // Whether the item will be in flight once it is executed.
  static bool UsesWire(const ReadyItem& item);
  void AddNews(Entry* entry);
  // The number that the request may be submitted under. 0: none.
  SignatureNumber NumberOf(Entry* entry) const;
  // negotiator_reports.cc: to the leader, or to the gatherer.
  Status TellNews(Clock::time_point now);
  // What has been gathered. True if there was anything.
  Result<bool> TellGathered(Clock::time_point now);
  // A gatherer sends its host the log.
  void HandOn(const LogMessage& log);
  // The queue whose last entry has the ticket and is not cancelled. Null: none.
  Queue* FindByTicket(uint64_t ticket);
  // negotiator_log.cc, down to Take.
  Status Apply(const LogRecord& record);
  Status Apply(const AgreedBatch& batch);
  Status TakeBatch(const AgreedBatch& batch, ReadyBatch* ready);
  Status Apply(const Failure& failure);
  Status Apply(const Eviction& eviction);
  Status Apply(const Tuning& tuning);
  Status Apply(const Joined& joined);
  Status Apply(const JoinWithdrawn& withdrawn);
  Status Apply(const Skipped&) { return Status::Ok(); }
  // Takes out the oldest join. Null: there is none.
  Result<JoinCallPtr> TakeJoin();
  // Stands for a tensor that this rank takes part in without having submitted
  // it.
  Result<Outstanding> MakeAbsent(const AgreedTensor& tensor,
                                 const Key& key) const;
  Status Apply(const SetChange& change);
  // The key that a record names. A number is looked up. `memory` is where a key
  // with an instance is made.
  Result<const Key*> Resolve(SignatureNumber number, const Key& key,
                             Key* memory) const;
  // Moves an entry of the key to the end of `taken`: the one that has `older`
  // entries before it. False: there is none.
  bool Take(const Key& key, int older, std::vector<Outstanding>* taken);
  void FailIfEnded();

  const int serial_;
  const int rank_;
  const int size_;
  const Options options_;
  const int64_t most_chunk_bytes_;
  const HostTree tree_;

  RecyclingMap<Key, Queue, KeyHash> outstanding_;
  // By ticket: the queue whose last entry has it. The first Cancel makes it,
  // for the cancels that follow. It is emptied when outstanding_ changes.
  std::unordered_map<uint64_t, Queue*> by_ticket_;
  // Joins without an answer in the log, the oldest first. Null: taken back. At
  // most the last one is not.
  std::deque<JoinCallPtr> joins_;
  Trace* trace_ = nullptr;
  int set_id_ = 0;  // what users call the set by
  ResponseCache cache_;
  std::deque<ReadyItem> ready_;
  std::vector<LoggedChange> set_changes_;
  int ready_for_wire_ = 0;  // batches of ready_ that will be on the wire
  std::vector<ReportItem> news_;
  uint64_t log_seen_ = 0;
  uint64_t log_told_ = 0;  // log_seen_ of the latest report
  uint64_t log_taken_ = 0;
  // Set by EndAt.
  std::optional<uint64_t> last_log_number_;
  Status ended_;
  bool is_closed_ = false;    // by FailAll
  bool is_answered_ = false;  // by AnswerAll
  Status closing_;            // the leader's: the log ends with it

  std::unique_ptr<Leader> leader_;
  std::unique_ptr<ReportGatherer> gatherer_;  // null: this rank is none
  LogSender log_sender_;                      // the leader's, or the gatherer's
  std::vector<LogRecord> log_news_;  // the leader's: not yet in messages
  std::vector<OutgoingMessage> outgoing_;
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_NEGOTIATOR_H_
