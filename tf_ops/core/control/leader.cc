// SPDX-License-Identifier: Apache-2.0
// Takes reports in, decides on keys that all have submitted, writes the log.
#include "core/control/leader.h"

#include <algorithm>
#include <utility>

#include "core/verbs/verb_rules.h"

namespace hvd {

Leader::Leader(std::vector<int> job_ranks, const Options& options,
               HostMap hosts)
    : job_ranks_(std::move(job_ranks)),
      size_(static_cast<int>(job_ranks_.size())),
      tree_(std::move(hosts), 0, size_),
      options_(options),
      tuning_{options.fusion_bytes, 0, options.batches_in_flight},
      host_matcher_(tree_.hosts().host_count()),
      matcher_(size_),
      aborts_(job_ranks_, &matcher_),
      numbers_(options.cache_entries),
      stalls_(job_ranks_, options, &matcher_),
      log_seen_(tree_.is_on() ? tree_.hosts().ranks.size() : job_ranks_.size(),
                0) {}

Status Leader::Handle(int rank, const Report& report, Clock::time_point now) {
  HVD_RETURN_IF_ERROR(CheckLogSeen(rank, report.log_seen));
  for (const ReportItem& item : report.items) {
    Status status = std::visit(
        [&](const auto& value) { return HandleItem(rank, value, now); }, item);
    if (!status.ok()) return status;
  }
  // This comes after the items. They may be older than the last record that the
  // rank has seen, and may name numbers that the record evicts.
  NoteLogSeen(rank, report.log_seen);
  return Status::Ok();
}

Status Leader::CheckLogSeen(int source, uint64_t log_seen) const {
  if (log_seen_[source] <= log_seen && log_seen <= log_number_) {
    return Status::Ok();
  }
  return Internal("a report names log record " + std::to_string(log_seen) +
                  " of " + std::to_string(log_number_) + ".");
}

void Leader::NoteLogSeen(int source, uint64_t log_seen) {
  log_seen_[source] = log_seen;
  ForgetRetired();
}

void Leader::ForgetRetired() {
  if (numbers_.retired_count() == 0) return;
  numbers_.ForgetRetired(*std::min_element(log_seen_.begin(), log_seen_.end()));
}

Status Leader::HandleItem(int rank, const Withdrawal& withdrawal,
                          Clock::time_point) {
  MoveAllToMatcher();
  aborts_.Withdraw(rank, withdrawal);
  return Status::Ok();
}

Status Leader::HandleItem(int rank, const ScopeEnd& end, Clock::time_point) {
  MoveAllToMatcher();
  aborts_.EndScope(rank, end);
  return Status::Ok();
}

Matcher::Pending* Leader::Decide(Pending* pending) {
  requests_.clear();
  steps_.clear();
  for (int rank = 0; rank < size_; ++rank) {
    const Waiting& waiting = pending->fronts[rank];
    requests_.push_back(
        {job_ranks_[rank], waiting.signature,
         waiting.extra == nullptr ? nullptr : &waiting.extra->error});
    steps_.push_back(waiting.step);
  }
  const Status status = CheckAgreement(pending->key.name, requests_);
  if (!status.ok()) {
    const Key key = pending->key;
    MoveAllToMatcher();
    aborts_.Disagree(pending, steps_, status);
    return matcher_.Find(key);
  }
  // That of the first rank that is here. Whoever has told the one that others
  // are compared with may have taken it back.
  const auto own = std::find_if(
      pending->fronts.begin(), pending->fronts.end(),
      [](const Waiting& front) { return front.signature != nullptr; });
  const bool shares = own == pending->fronts.end() ||
                      own->signature == pending->signature.get();
  Agreed agreed;
  agreed.absent = AbsentFrom(*pending);
  agreed.key = pending->key;
  agreed.signature_number = pending->number;
  agreed.signature = shares ? pending->signature : own->extra->signature;
  if (SizesInLog(agreed.signature->verb, size_)) {
    agreed.first_dims.resize(agreed.signature->shapes.size());
    for (size_t i = 0; i < agreed.first_dims.size(); ++i) {
      agreed.first_dims[i].reserve(size_);
      for (const Waiting& waiting : pending->fronts) {
        agreed.first_dims[i].push_back(
            waiting.extra == nullptr ? 0 : waiting.extra->first_dims[i]);
      }
    }
  }
  PlanAgreed(std::move(agreed));
  matcher_.ClearFronts(pending);
  return pending;
}

void Leader::PlanAgreed(Agreed agreed) {
  agreed.agreement = aborts_.Agree(steps_);
  agreed.bytes = FusionBytes(*agreed.signature, agreed.first_dims, size_);
  planner_.Add(std::move(agreed));
}

std::optional<LogRecord> Leader::Next(int in_flight) {
  if (!planner_.has_batch()) {
    planner_.Plan(tuning_.batches_in_flight - in_flight, tuning_.fusion_bytes,
                  aborts_.any_lost());
  }
  const uint64_t number = log_number_ + 1;
  std::optional<LogRecord> record;
  if (auto failure = NextFailure()) {
    record = LogRecord(std::move(*failure));
  } else if (tuning_news_.has_value()) {
    record = LogRecord(*tuning_news_);
    tuning_news_.reset();
  } else if (!join_news_.empty()) {
    record = std::move(join_news_.front());
    join_news_.pop_front();
  } else if (auto change = NextSetChange()) {
    record = LogRecord(std::move(*change));
  } else if (numbers_.has_too_many()) {
    record = LogRecord(numbers_.Evict(number));
  } else if (planner_.has_batch()) {
    AgreedBatch batch = numbers_.MakeBatch(planner_.TakeBatch(), number);
    if (options_.join_average == JoinAverage::kActive &&
        !batch.absent.empty()) {
      batch.divisor = size_ - static_cast<int64_t>(batch.absent.size());
    }
    record = LogRecord(std::move(batch));
  }
  if (record.has_value()) log_number_ = number;
  return record;
}

std::optional<Failure> Leader::NextFailure() {
  if (!aborts_.has_failures()) return std::nullopt;
  const auto held_back = planner_.FirstAgreements();
  std::optional<Failure> failure =
      aborts_.TakeFailure([&](const Key& key, uint64_t agreements) {
        const auto first = held_back.find(key);
        return first != held_back.end() && first->second <= agreements;
      });
  if (!failure.has_value()) return failure;
  for (FailedKey& failed : failure->keys) {
    failed.signature_number = numbers_.NumberOf(failed.key.name);
    if (failed.signature_number != 0) failed.key.name.clear();
  }
  return failure;
}

void Leader::Tune(const Tuning& tuning) {
  tuning_ = tuning;
  tuning_news_ = tuning;
}

Leader::Watched Leader::Watch(Clock::time_point now) {
  MoveOldToMatcher(now);
  StallFinder::Found found = stalls_.Find(now);
  if (found.mismatch.has_value()) {
    MoveAllToMatcher();
    aborts_.FailAll(Status(StatusCode::kFailedPrecondition,
                           std::move(*found.mismatch),
                           {CauseKind::kRanksDiffer, -1, ""}));
  }
  FindWaitingSetCall(now, &found.watched);
  for (Stall& stall : found.watched.stalls) AddReporters(&stall);
  return std::move(found.watched);
}

}  // namespace hvd
