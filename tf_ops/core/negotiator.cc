// SPDX-License-Identifier: Apache-2.0
// Reports this rank's entries and carries out the set's log.
#include "core/negotiator.h"

#include <algorithm>
#include <utility>

namespace hvd {
namespace {

// The reason why a set has ended, as one entry's failure.
Status FailureOf(const std::string& name, const Status& why) {
  return Status(why.code(), "'" + name + "' cannot complete: " + why.message());
}

}  // namespace

Negotiator::Negotiator(int set_id, int rank, std::vector<int> job_ranks,
                       const Options& options,
                       std::function<void(ReadyBatch)> execute,
                       std::function<int()> batches_in_flight)
    : set_id_(set_id),
      rank_(rank),
      size_(static_cast<int>(job_ranks.size())),
      options_(options),
      execute_(std::move(execute)),
      batches_in_flight_(std::move(batches_in_flight)) {
  if (rank_ == 0) {
    leader_ = std::make_unique<Leader>(std::move(job_ranks), options, &cache_);
  }
}

void Negotiator::Submit(Entry entry) {
  if (!ended_.ok()) {
    entry.done(FailureOf(entry.request.key.name, ended_));
    return;
  }
  const Key& key = entry.request.key;
  auto& queue = outstanding_[key];
  if (!queue.empty() && !queue.back().cancelled) {
    entry.done(InvalidArgument(
        "'" + key.name +
        "' is already in flight on this rank; give tensors that are in flight "
        "together different name= arguments."));
    return;
  }
  news_.push_back(MakeSubmission(entry.request));
  Outstanding outstanding{std::move(entry), false};
  Entry& kept = outstanding.entry;
  if (!kept.request.error.ok()) {
    kept.done(kept.request.error);
    outstanding.cancelled = true;
  } else {
    undone_[kept.ticket] = {kept.request.key, kept.request.step};
    kept.done = [this, ticket = kept.ticket,
                 done = std::move(kept.done)](const Status& status) {
      undone_.erase(ticket);
      done(status);
    };
  }
  queue.push_back(std::move(outstanding));
}

ReportItem Negotiator::MakeSubmission(const Request& request) const {
  Submission submission;
  submission.step = request.step;
  if (request.error.ok()) {
    submission.cache_id = cache_.Find(request.key.name, request.signature);
  }
  submission.key.instance = request.key.instance;
  if (submission.cache_id != 0) {
    if (request.signature.verb == Verb::kAllgather) {
      submission.first_dims = FirstDims(request.signature);
    }
    return submission;
  }
  submission.key.name = request.key.name;
  submission.signature = request.signature;
  submission.error = request.error;
  return submission;
}

void Negotiator::Cancel(uint64_t ticket, const Status& why) {
  auto found = undone_.find(ticket);
  if (found == undone_.end() || !ended_.ok()) return;
  const Undone undone = found->second;
  AbortStep(undone.key, undone.step, why);
  auto queue = outstanding_.find(undone.key);
  if (queue == outstanding_.end()) return;  // on the wire
  for (Outstanding& outstanding : queue->second) {
    if (outstanding.entry.ticket != ticket) continue;
    outstanding.cancelled = true;
    outstanding.entry.done(why);
    return;
  }
}

void Negotiator::AbortStep(const Key& key, int64_t step, const Status& why) {
  news_.push_back(Withdrawal{key, step, why});
}

void Negotiator::EndScope(const std::string& name_prefix,
                          const std::string& text) {
  news_.push_back(ScopeEnd{name_prefix, text});
}

Status Negotiator::HandleReport(int rank, const Report& report,
                                Clock::time_point now) {
  if (leader_ == nullptr) {
    return Internal("a report came to a rank that does not lead set " +
                    std::to_string(set_id_) + ".");
  }
  if (!ended_.ok()) return Status::Ok();  // the set's log is closed
  return leader_->Handle(rank, report, now);
}

Status Negotiator::HandleLog(const LogMessage& log) {
  if (log.first_number != log_seen_ + 1) {
    return Internal("log record " + std::to_string(log.first_number) +
                    " of set " + std::to_string(set_id_) + " came after " +
                    std::to_string(log_seen_) + ".");
  }
  for (const LogRecord& record : log.records) {
    HVD_RETURN_IF_ERROR(CarryOut(record));
  }
  FailIfEnded();
  return Status::Ok();
}

Result<bool> Negotiator::Advance(Clock::time_point now) {
  bool moved = !news_.empty();
  if (moved) {
    Report report{log_seen_, std::move(news_)};
    news_.clear();
    if (leader_ == nullptr) {
      outgoing_.push_back({0, Encode({set_id_, std::move(report)})});
    } else if (ended_.ok()) {
      HVD_RETURN_IF_ERROR(leader_->Handle(rank_, report, now));
    }
  }
  if (leader_ == nullptr || !ended_.ok()) return moved;
  while (auto record = leader_->Next(batches_in_flight_())) {
    HVD_RETURN_IF_ERROR(CarryOut(*record));
    log_news_.push_back(std::move(*record));
    moved = true;
  }
  if (log_news_.empty()) return moved;
  LogMessage log{log_seen_ - log_news_.size() + 1, std::move(log_news_)};
  log_news_.clear();
  std::string bytes = Encode({set_id_, std::move(log)});
  for (int rank = 1; rank < size_; ++rank) outgoing_.push_back({rank, bytes});
  return moved;
}

std::vector<Negotiator::OutgoingMessage> Negotiator::TakeMessages() {
  return std::exchange(outgoing_, {});
}

std::vector<std::string> Negotiator::Watch(Clock::time_point now) {
  if (leader_ == nullptr || !ended_.ok()) return {};
  return leader_->Watch(now);
}

Status Negotiator::CarryOut(const LogRecord& record) {
  ++log_seen_;
  if (last_log_number_.has_value() && log_seen_ > *last_log_number_) {
    return Status::Ok();  // a member that has ended takes no part in it
  }
  return std::visit([this](const auto& value) { return CarryOut(value); },
                    record);
}

Status Negotiator::CarryOut(const AgreedBatch& batch) {
  ReadyBatch ready;
  ready.log_number = log_seen_;
  ready.tensors.reserve(batch.tensors.size());
  ready.first_dims.reserve(batch.tensors.size());
  for (const AgreedTensor& tensor : batch.tensors) {
    Key key = tensor.key;
    if (key.name.empty()) {
      const ResponseCache::Remembered* remembered = cache_.Get(tensor.cache_id);
      if (remembered == nullptr) {
        return Internal("the log names an unknown cache number " +
                        std::to_string(tensor.cache_id) + ".");
      }
      key.name = remembered->name;
    }
    std::optional<Outstanding> outstanding = Take(key);
    if (!outstanding.has_value()) {
      return Internal("the log agrees on '" + key.name +
                      "', which this rank has not submitted.");
    }
    if (tensor.cache_id != 0 && !tensor.key.name.empty()) {
      cache_.Insert(
          tensor.cache_id, key.name,
          std::make_shared<Signature>(outstanding->entry.request.signature));
    }
    ready.tensors.push_back(std::move(*outstanding));
    ready.first_dims.push_back(tensor.first_dims);
  }
  execute_(std::move(ready));
  return Status::Ok();
}

Status Negotiator::CarryOut(const Failure& failure) {
  if (std::find(failure.ranks.begin(), failure.ranks.end(), rank_) ==
      failure.ranks.end()) {
    return Status::Ok();
  }
  std::optional<Outstanding> outstanding = Take(failure.key);
  if (!outstanding.has_value()) {
    return Internal("the log fails '" + failure.key.name +
                    "', which this rank has not submitted.");
  }
  if (!outstanding->cancelled) outstanding->entry.done(failure.status);
  return Status::Ok();
}

Status Negotiator::CarryOut(const Eviction& eviction) {
  for (CacheId id : eviction.ids) cache_.Erase(id);
  return Status::Ok();
}

std::optional<Outstanding> Negotiator::Take(const Key& key) {
  auto found = outstanding_.find(key);
  if (found == outstanding_.end()) return std::nullopt;
  Outstanding outstanding = std::move(found->second.front());
  found->second.erase(found->second.begin());
  if (found->second.empty()) outstanding_.erase(found);
  return outstanding;
}

void Negotiator::EndAt(uint64_t log_number, const Status& why) {
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
  auto outstanding = std::exchange(outstanding_, {});
  news_.clear();
  for (auto& [key, queue] : outstanding) {
    for (Outstanding& lost : queue) {
      if (!lost.cancelled) lost.entry.done(FailureOf(key.name, why));
    }
  }
}

}  // namespace hvd
