// SPDX-License-Identifier: Apache-2.0
// Takes this rank's entries, has them reported, and answers them at the end.
#include "core/control/negotiator.h"

#include <utility>

#include "core/quoted.h"
#include "core/trace.h"
#include "core/verbs/verb_rules.h"

namespace hvd {

Status Negotiator::FailureOf(const std::string& name, const Status& why) {
  return why.Reworded(Quoted(name) + " cannot complete: " + why.message());
}

bool Negotiator::UsesWire(const ReadyItem& item) {
  const auto* batch = std::get_if<ReadyBatch>(&item);
  if (batch == nullptr) return false;
  const Request& first = batch->tensors[0].entry->request;
  return RulesOf(first.signature.verb).uses_wire;
}

Negotiator::Negotiator(int serial, int rank, std::vector<int> job_ranks,
                       const Options& options, int64_t most_chunk_bytes,
                       HostMap hosts)
    : serial_(serial),
      rank_(rank),
      size_(static_cast<int>(job_ranks.size())),
      options_(options),
      most_chunk_bytes_(most_chunk_bytes),
      tree_(std::move(hosts), rank, size_),
      log_sender_(serial, size_, tree_.receivers()) {
  if (rank_ == 0) {
    leader_ =
        std::make_unique<Leader>(std::move(job_ranks), options, tree_.hosts());
  }
  if (tree_.gathers()) {
    gatherer_ = std::make_unique<ReportGatherer>(tree_.neighbours());
  }
}

void Negotiator::LeadSets(std::unique_ptr<SetChanges> changes) {
  leader_->LeadSets(std::move(changes));
}

void Negotiator::Tune(const Tuning& tuning) { leader_->Tune(tuning); }

void Negotiator::Submit(EntryPtr entry) {
  if (!ended_.ok()) {
    entry->done(FailureOf(entry->request.key.name, ended_));
    return;
  }
  const Key& key = entry->request.key;
  if (!by_ticket_.empty()) by_ticket_.clear();
  Queue& queue = outstanding_.FindOrInsert(key)->second;
  if (!queue.empty() && !queue.back().cancelled) {
    entry->done(InvalidArgument(
        Quoted(key.name) +
        " is already in flight on this rank; give tensors that are in flight "
        "together different name= arguments, and let the map of a tf.data "
        "pipeline run one call at a time (no num_parallel_calls, and "
        "options.experimental_optimization.map_parallelization = False)."));
    return;
  }
  AddNews(entry.get());
  const Status& error = entry->request.error;
  if (trace_ != nullptr && error.ok()) {
    trace_->Submitted(serial_, set_id_, *entry);
  }
  // These come last: if memory runs out before, the caller still has the entry.
  queue.push_back({entry, !error.ok()});
  if (!error.ok()) entry->done(error);
}

void Negotiator::Join(JoinCallPtr call) {
  if (!ended_.ok()) return call->done(FailureOf("join", ended_), -1);
  if (is_joining()) {
    return call->done(
        InvalidArgument("this rank has called hvd.join() already, and it has "
                        "not returned; call it once."),
        -1);
  }
  news_.push_back(hvd::Join{});
  joins_.push_back(std::move(call));  // last, as in Submit
}

SignatureNumber Negotiator::NumberOf(Entry* entry) const {
  const Request& request = entry->request;
  if (!request.error.ok()) return 0;
  // No number is used twice. So one that is known still means the same.
  if (cache_.Get(entry->signature_number) == nullptr) {
    entry->signature_number = cache_.Find(request.key.name, request.signature);
  }
  return entry->signature_number;
}

void Negotiator::AddNews(Entry* entry) {
  const Request& request = entry->request;
  const SignatureNumber number = NumberOf(entry);
  const bool tells_sizes = SizesInLog(request.signature.verb, size_);
  if (number != 0 && request.key.instance == 0) {
    auto* last =
        news_.empty() ? nullptr : std::get_if<CachedSubmissions>(&news_.back());
    if (last == nullptr || last->step != request.step ||
        last->first_dims.empty() == tells_sizes) {
      last = &std::get<CachedSubmissions>(
          news_.emplace_back(CachedSubmissions{request.step, {}}));
    }
    last->numbers.push_back(number);
    if (tells_sizes) AppendFirstDims(request.signature, &last->first_dims);
    return;
  }
  Submission submission;
  submission.signature_number = number;
  submission.key.instance = request.key.instance;
  submission.step = request.step;
  if (number != 0) {
    if (tells_sizes) {
      AppendFirstDims(request.signature, &submission.first_dims);
    }
  } else {
    submission.key.name = request.key.name;
    submission.signature = request.signature;
    submission.error = request.error;
  }
  news_.push_back(std::move(submission));
}

bool Negotiator::Cancel(uint64_t ticket, const Status& why) {
  if (is_joining() && joins_.back()->ticket == ticket) {
    Tell(Unjoin{});
    std::exchange(joins_.back(), nullptr)->done(why, -1);
    return true;
  }
  Queue* const queue = FindByTicket(ticket);
  if (queue == nullptr) return false;
  Outstanding& outstanding = queue->back();
  const Request& request = outstanding.entry->request;
  AbortStep(request.key, request.step, why);
  outstanding.cancelled = true;
  if (trace_ != nullptr) trace_->Failed(*outstanding.entry);
  outstanding.entry->done(why);
  return true;
}

Negotiator::Queue* Negotiator::FindByTicket(uint64_t ticket) {
  if (by_ticket_.empty()) {
    for (auto& [key, queue] : outstanding_) {
      by_ticket_[queue.back().entry->ticket] = &queue;
    }
  }
  const auto found = by_ticket_.find(ticket);
  if (found == by_ticket_.end() || found->second->back().cancelled) {
    return nullptr;
  }
  return found->second;
}

void Negotiator::AbortStep(const Key& key, int64_t step, const Status& why) {
  Tell(Withdrawal{key, step, why});
}

void Negotiator::EndScope(const std::string& name_prefix,
                          const std::string& text) {
  Tell(ScopeEnd{name_prefix, text});
}

void Negotiator::Tell(ReportItem item) {
  if (ended_.ok()) news_.push_back(std::move(item));
}

void Negotiator::Close(const Status& why) {
  if (leader_ != nullptr) closing_ = why;
}

Result<bool> Negotiator::Advance(int in_flight, Clock::time_point now) {
  // A rank that waits in a join has no news. The leader keeps what such a rank
  // may still refer to, until it tells how far it is.
  bool moved = !news_.empty() ||
               (ended_.ok() && log_seen_ - log_told_ >= kMostRecordsUntold);
  if (moved) HVD_RETURN_IF_ERROR(TellNews(now));
  if (gatherer_ != nullptr) {
    const Result<bool> told = TellGathered(now);
    if (!told.ok()) return told.status();
    moved |= told.value();
  }
  if (leader_ == nullptr || !ended_.ok()) return moved;
  while (auto record = leader_->Next(in_flight + ready_for_wire_)) {
    HVD_RETURN_IF_ERROR(Apply(*record));
    log_news_.push_back(std::move(*record));
    moved = true;
  }
  if (!closing_.ok()) {
    SetChange close;
    close.step = SetStep::kClose;
    close.status = std::exchange(closing_, Status::Ok());
    LogRecord record = std::move(close);
    HVD_RETURN_IF_ERROR(Apply(record));
    log_news_.push_back(std::move(record));
    moved = true;
  }
  if (log_news_.empty()) return moved;
  log_sender_.Send(log_news_, &outgoing_);
  log_news_.clear();
  return moved;
}

std::optional<ReadyItem> Negotiator::TakeReady() {
  if (ready_.empty()) return std::nullopt;
  ReadyItem item = std::move(ready_.front());
  ready_.pop_front();
  if (UsesWire(item)) --ready_for_wire_;
  return item;
}

std::vector<LoggedChange> Negotiator::TakeSetChanges() {
  return std::exchange(set_changes_, {});
}

std::vector<OutgoingMessage> Negotiator::TakeMessages() {
  return std::exchange(outgoing_, {});
}

Leader::Watched Negotiator::Watch(Clock::time_point now) {
  if (leader_ == nullptr || !ended_.ok()) return {};
  return leader_->Watch(now);
}

void Negotiator::AppendWaiting(std::vector<std::string>* names) const {
  for (const auto& [key, queue] : outstanding_) {
    if (queue.back().cancelled || key.name == kMeetingOfLanes) continue;
    names->push_back(key.name);
  }
}

void Negotiator::EndAt(uint64_t log_number, const Status& why) {
  // A member that waits for that record may have to skip it, and would not hear
  // of it.
  log_sender_.CatchUp(&outgoing_);
  if (last_log_number_.has_value() && *last_log_number_ <= log_number) return;
  last_log_number_ = log_number;
  if (ended_.ok()) ended_ = why;
  FailIfEnded();
}

void Negotiator::FailIfEnded() {
  // Until then the log may still agree on what this rank has submitted.
  if (!last_log_number_.has_value() || log_seen_ < *last_log_number_) return;
  FailAll(ended_);
}

void Negotiator::FailAll(const Status& why) {
  if (ended_.ok()) ended_ = why;
  is_closed_ = true;
  AnswerAll(why);
  outstanding_ = {};
  joins_.clear();
  if (!by_ticket_.empty()) by_ticket_.clear();
}

void Negotiator::AnswerAll(const Status& why) {
  if (ended_.ok()) ended_ = why;
  is_answered_ = true;
  news_.clear();
  // Nothing is marked as answered before its answer has its memory.
  for (JoinCallPtr& call : joins_) {
    if (call == nullptr) continue;
    const Status status = FailureOf("join", why);
    std::exchange(call, nullptr)->done(status, -1);
  }
  for (auto& [key, queue] : outstanding_) {
    for (Outstanding& lost : queue) {
      if (lost.cancelled) continue;
      const Status status = FailureOf(key.name, why);
      if (trace_ != nullptr) trace_->Failed(*lost.entry);
      lost.cancelled = true;
      lost.entry->done(status);
    }
  }
}

}  // namespace hvd
