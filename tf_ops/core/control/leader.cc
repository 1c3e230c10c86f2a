// SPDX-License-Identifier: Apache-2.0
// Matches the ranks' submissions, and decides on keys that all have submitted.
#include "core/control/leader.h"

#include <algorithm>

#include "core/control/agreement.h"
#include "core/verbs/verb_rules.h"

namespace hvd {
namespace {

Status UnknownNumber(CacheId id) {
  return Internal("unknown cache number " + std::to_string(id) + ".");
}

// For a submission under a number. Where the log has the first dimensions, it
// comes with one for each shape.
Status CheckFirstDims(const Signature& signature, const Shape& first_dims,
                      int size) {
  const size_t due =
      SizesInLog(signature.verb, size) ? signature.shapes.size() : 0;
  if (first_dims.size() == due) return Status::Ok();
  return Internal(std::string(Name(signature.verb)) + " of " +
                  std::to_string(signature.shapes.size()) +
                  " tensors came with " + std::to_string(first_dims.size()) +
                  " first dimensions.");
}

}  // namespace

Leader::Leader(std::vector<int> job_ranks, const Options& options,
               ResponseCache* cache)
    : job_ranks_(std::move(job_ranks)),
      size_(static_cast<int>(job_ranks_.size())),
      options_(options),
      cache_(cache),
      tuning_{options.fusion_bytes, 0, options.batches_in_flight},
      step_aborts_(size_),
      log_seen_(job_ranks_.size(), 0) {}

std::string Leader::RankName(int rank) const {
  return NameRanks({job_ranks_[rank]});
}

Status Leader::Handle(int rank, const Report& report, Clock::time_point now) {
  if (report.log_seen < log_seen_[rank] || report.log_seen > log_number_) {
    return Internal(RankName(rank) + " reports log record " +
                    std::to_string(report.log_seen) + " of " +
                    std::to_string(log_number_) + ".");
  }
  for (const ReportItem& item : report.items) {
    Status status = std::visit(
        [&](const auto& value) { return HandleItem(rank, value, now); }, item);
    if (!status.ok()) return status;
  }
  // This comes after the items. They may be older than the last record that the
  // rank has seen, and may name numbers that the record evicts.
  log_seen_[rank] = report.log_seen;
  ForgetRetired();
  return Status::Ok();
}

const ResponseCache::Remembered* Leader::Recall(CacheId id) const {
  const ResponseCache::Remembered* remembered = cache_->Get(id);
  if (remembered != nullptr) return remembered;
  auto retired = retired_.find(id);
  return retired == retired_.end() ? nullptr : &retired->second.remembered;
}

Status Leader::HandleItem(int rank, const Submission& submission,
                          Clock::time_point now) {
  Key composed;
  const Key* key = &submission.key;
  const Signature* signature = &submission.signature;
  std::shared_ptr<const Signature> kept;
  if (submission.cache_id != 0) {
    const auto* remembered = Recall(submission.cache_id);
    if (remembered == nullptr) return UnknownNumber(submission.cache_id);
    kept = remembered->signature;
    signature = kept.get();
    HVD_RETURN_IF_ERROR(
        CheckFirstDims(*signature, submission.first_dims, size_));
    key = &remembered->KeyOf(submission.key.instance, &composed);
  }
  if (signature->root < 0 || signature->root >= size_) {
    return Internal("a root of " + std::to_string(signature->root) +
                    " in a set of " + std::to_string(size_) + ".");
  }
  if (!Admit(rank, *key, submission.step, now)) return Status::Ok();
  Waiting waiting{nullptr, submission.step, nullptr};
  const bool tells_sizes = SizesInLog(signature->verb, size_);
  if (tells_sizes || !submission.error.ok()) {
    waiting.extra = std::make_unique<Extra>();
    waiting.extra->error = submission.error;
    if (tells_sizes) {
      waiting.extra->first_dims =
          kept != nullptr ? submission.first_dims : FirstDims(*signature);
    }
  }
  Pending* pending = FindOrAddPending(*key, now);
  SetSignature(&waiting, pending, *signature, kept);
  Add(rank, pending, std::move(waiting));
  return Status::Ok();
}

Status Leader::HandleItem(int rank, const CachedSubmissions& cached,
                          Clock::time_point now) {
  for (CacheId id : cached.ids) {
    const auto known = pending_by_id_.find(id);
    if (known != pending_by_id_.end()) {
      Pending* pending = known->second;
      if (!Admit(rank, pending->key, cached.step, now)) continue;
      Add(rank, pending, {pending->signature.get(), cached.step, nullptr});
      continue;
    }
    const auto* remembered = Recall(id);
    if (remembered == nullptr) return UnknownNumber(id);
    const auto& signature = remembered->signature;
    HVD_RETURN_IF_ERROR(CheckFirstDims(*signature, {}, size_));
    if (!Admit(rank, remembered->key, cached.step, now)) continue;
    Pending* pending = FindOrAddPending(remembered->key, now);
    Waiting waiting{nullptr, cached.step, nullptr};
    SetSignature(&waiting, pending, *signature, signature);
    // But not if another rank has asked for something else under the name.
    if (pending->id == 0 && waiting.extra == nullptr) {
      pending->id = id;
      pending_by_id_.FindOrInsert(id)->second = pending;
    }
    Add(rank, pending, std::move(waiting));
  }
  return Status::Ok();
}

bool Leader::Admit(int rank, const Key& key, int64_t step,
                   Clock::time_point now) {
  last_submission_ = now;
  mismatch_warned_ = false;
  return !FailIfDoomed(rank, key, step) && !FailIfScopeEnded(rank, key, step);
}

Leader::Pending* Leader::FindOrAddPending(const Key& key,
                                          Clock::time_point now) {
  Pending* pending = &pending_.FindOrInsert(key)->second;
  if (pending->ready == 0 && pending->later.empty()) {
    pending->key = key;
    pending->fronts.resize(size_);
    pending->since = now;
    pending->next_warning_s = options_.stall_warning_s;
  }
  return pending;
}

void Leader::SetSignature(Waiting* waiting, Pending* pending,
                          const Signature& signature,
                          const std::shared_ptr<const Signature>& kept) {
  const auto keep = [&] {
    return kept != nullptr ? kept
                           : std::make_shared<const Signature>(signature);
  };
  if (pending->signature == nullptr) {
    pending->signature = keep();
    waiting->signature = pending->signature.get();
  } else if (SameButFirstDims(*pending->signature, signature)) {
    waiting->signature = pending->signature.get();
  } else {
    if (waiting->extra == nullptr) waiting->extra = std::make_unique<Extra>();
    waiting->extra->signature = keep();
    waiting->signature = waiting->extra->signature.get();
  }
}

void Leader::Add(int rank, Pending* pending, Waiting waiting) {
  if (pending->fronts[rank].signature != nullptr) {
    pending->later.emplace_back(rank, std::move(waiting));
    return;
  }
  pending->fronts[rank] = std::move(waiting);
  if (++pending->ready < size_) return;
  while (pending != nullptr && pending->ready == size_) {
    pending = Decide(pending);
  }
  if (pending != nullptr) EraseIfEmpty(pending->key);
}

void Leader::ClearFronts(Pending* pending) {
  for (Waiting& front : pending->fronts) front = Waiting();
  pending->ready = 0;
  std::vector<std::pair<int, Waiting>> later;
  later.swap(pending->later);
  for (auto& [rank, waiting] : later) {
    if (pending->fronts[rank].signature != nullptr) {
      pending->later.emplace_back(rank, std::move(waiting));
      continue;
    }
    pending->fronts[rank] = std::move(waiting);
    ++pending->ready;
  }
  // The rest are later submissions, which have not waited yet.
  pending->since = last_submission_;
  pending->next_warning_s = options_.stall_warning_s;
}

void Leader::EraseIfEmpty(const Key& key) {
  const auto found = pending_.find(key);
  if (found == pending_.end()) return;
  Pending& pending = found->second;
  if (pending.ready > 0 || !pending.later.empty()) return;
  if (pending.id != 0) pending_by_id_.Erase(pending_by_id_.find(pending.id));
  pending.id = 0;
  pending.signature.reset();
  pending_.Erase(found);
}

Leader::Pending* Leader::Decide(Pending* pending) {
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
    FailOnAll(pending, status);
    const auto left = pending_.find(key);
    return left == pending_.end() ? nullptr : &left->second;
  }
  step_aborts_.Correspond(steps_);
  const Waiting& own = pending->fronts[0];
  const bool shares = own.signature == pending->signature.get();
  Agreed agreed;
  agreed.key = pending->key;
  agreed.id = pending->id;
  agreed.number = ++agreements_;
  agreed.signature = shares ? pending->signature : own.extra->signature;
  if (SizesInLog(agreed.signature->verb, size_)) {
    agreed.first_dims.resize(agreed.signature->shapes.size());
    for (size_t i = 0; i < agreed.first_dims.size(); ++i) {
      agreed.first_dims[i].reserve(size_);
      for (const Waiting& waiting : pending->fronts) {
        agreed.first_dims[i].push_back(waiting.extra->first_dims[i]);
      }
    }
  }
  agreed.bytes = FusionBytes(*agreed.signature, agreed.first_dims, size_);
  if (autotuner_ != nullptr)
    autotuner_->Agreed(agreed.key, agreed.bytes, last_submission_);
  agreed_.push_back(std::move(agreed));
  ClearFronts(pending);
  return pending;
}

void Leader::FailOnAll(Pending* pending, const Status& status) {
  ClearFronts(pending);
  const SharedStatus first = Share(status);
  std::vector<StepOfRank> lost;
  for (int rank = 0; rank < size_; ++rank) {
    failures_.Add(pending->key, rank, 0, first, agreements_);
    lost.push_back({rank, steps_[rank]});
  }
  // TensorFlow aborts the step of an op that fails. Here all ranks' ops fail.
  const std::string text = "Its step was aborted: " + status.message();
  HitSteps(0,
           Share(status.cause() == nullptr ? PeerLost(text)
                                           : PeerLost(text, *status.cause())),
           std::move(lost));
}

}  // namespace hvd
