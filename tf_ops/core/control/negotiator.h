// SPDX-License-Identifier: Apache-2.0
// Negotiator: one rank's side of a process set's control plane.
#ifndef HVD_CORE_CONTROL_NEGOTIATOR_H_
#define HVD_CORE_CONTROL_NEGOTIATOR_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/control/autotuner.h"
#include "core/control/leader.h"
#include "core/control/log_sender.h"
#include "core/control/message.h"
#include "core/control/recycling_map.h"
#include "core/control/response_cache.h"
#include "core/options.h"
#include "core/ready_batch.h"
#include "core/request.h"

namespace hvd {

// Keeps this rank's entries from Submit until the log decides on them. Exactly
// one log record answers each submission, and takes its entry out.
//
// The first rank of the set has the Leader inside. A Negotiator sends nothing
// itself: TakeMessages hands over what is to be sent. Background thread only.
// Ranks are ranks of the set.
class Negotiator {
 public:
  using Clock = std::chrono::steady_clock;

  // `execute` is called for each batch, and `tune` for each change of values,
  // in the order of the log. `batches_in_flight` says how many are on the wire.
  Negotiator(int set_id, int rank, std::vector<int> job_ranks,
             const Options& options, std::function<void(ReadyBatch)> execute,
             std::function<Status(const Tuning&)> tune,
             std::function<int()> batches_in_flight);

  // Called on the leader, before anything is submitted.
  void Autotune(std::unique_ptr<Autotuner> autotuner);

  void Submit(EntryPtr entry);
  // Fails the entry here, and tells the peers of the aborted step. False when
  // the log has decided on the entry. It may be on the wire then.
  bool Cancel(uint64_t ticket, const Status& why);
  void AbortStep(const Key& key, int64_t step, const Status& why);
  void EndScope(const std::string& name_prefix, const std::string& text);

  // HandleReport is called on the leader, with a report of the member `rank`.
  // HandleLog is called on the other members. Not Ok: it makes no sense.
  Status HandleReport(int rank, const Report& report, Clock::time_point now);
  Status HandleLog(const LogMessage& log);

  // Hands this pass' submissions to the leader, and lets it decide. True if
  // anything happened. Not Ok for a bug.
  Result<bool> Advance(Clock::time_point now);
  std::vector<OutgoingMessage> TakeMessages();
  // What the leader has to tell. Other ranks return nothing.
  Leader::Watched Watch(Clock::time_point now);
  // Appends what this rank has asked for and the log has not decided on.
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
  // Nobody here waits for an answer.
  bool idle() const { return outstanding_.empty() || is_answered_; }
  bool has_ended() const { return !ended_.ok(); }

 private:
  // The entries of one key, the oldest first. All but the last are cancelled.
  using Queue = std::vector<Outstanding>;

  void AddNews(const Request& request);
  // The queue whose last entry has the ticket and is not cancelled. Null: none.
  Queue* FindByTicket(uint64_t ticket);
  Status Apply(const LogRecord& record);
  Status Apply(const AgreedBatch& batch);
  Status TakeBatch(const AgreedBatch& batch, ReadyBatch* ready);
  Status Apply(const Failure& failure);
  Status Apply(const Eviction& eviction);
  Status Apply(const Tuning& tuning) { return tune_(tuning); }
  Status Apply(const Skipped&) { return Status::Ok(); }
  // The key that a record names. A number is looked up. `memory` is where a key
  // with an instance is made.
  Result<const Key*> Resolve(CacheId id, const Key& key, Key* memory) const;
  // Moves an entry of the key to the end of `taken`: the one that has `older`
  // entries before it. False: there is none.
  bool Take(const Key& key, int older, std::vector<Outstanding>* taken);
  void FailIfEnded();

  const int set_id_;
  const int rank_;
  const int size_;
  const Options options_;
  const std::function<void(ReadyBatch)> execute_;
  const std::function<Status(const Tuning&)> tune_;
  const std::function<int()> batches_in_flight_;

  RecyclingMap<Key, Queue, KeyHash> outstanding_;
  // By ticket: the queue whose last entry has it. The first Cancel makes it,
  // for the cancels that follow. It is emptied when outstanding_ changes.
  std::unordered_map<uint64_t, Queue*> by_ticket_;
  ResponseCache cache_;
  std::vector<ReportItem> news_;
  uint64_t log_seen_ = 0;
  // Set by EndAt.
  std::optional<uint64_t> last_log_number_;
  Status ended_;
  bool is_closed_ = false;    // by FailAll
  bool is_answered_ = false;  // by AnswerAll

  std::unique_ptr<Leader> leader_;
  LogSender log_sender_;             // the leader's
  std::vector<LogRecord> log_news_;  // the leader's: not yet in messages
  std::vector<OutgoingMessage> outgoing_;
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_NEGOTIATOR_H_
