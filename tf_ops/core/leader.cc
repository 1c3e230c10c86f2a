// SPDX-License-Identifier: Apache-2.0
// Matches the ranks' submissions and writes the set's log.
#include "core/leader.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "core/agreement.h"
#include "core/fusion.h"

namespace hvd {
namespace {

// Bytes that an agreed tensor moves, over all ranks for an allgather.
int64_t BytesOf(const Signature& signature,
                const std::vector<std::vector<int64_t>>& first_dims) {
  int64_t count = 0;
  for (size_t i = 0; i < signature.shapes.size(); ++i) {
    const Shape& shape = signature.shapes[i];
    if (signature.verb != Verb::kAllgather) {
      count += CountOf(shape);
      continue;
    }
    int64_t row = CountOf(Shape(shape.begin() + 1, shape.end()));
    for (int64_t rows : first_dims[i]) count += rows * row;
  }
  return count * static_cast<int64_t>(SizeOf(signature.dtype));
}

}  // namespace

Leader::Leader(std::vector<int> job_ranks, const Options& options,
               ResponseCache* cache)
    : job_ranks_(std::move(job_ranks)),
      size_(static_cast<int>(job_ranks_.size())),
      options_(options),
      cache_(cache),
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
  // Only now: the items may be older than the log record that the report ends
  // with, and name numbers that it evicts.
  log_seen_[rank] = report.log_seen;
  ForgetRetired();
  return Status::Ok();
}

Status Leader::Resolve(const Submission& submission, Key* key,
                       std::shared_ptr<const Signature>* signature) const {
  *key = submission.key;
  if (submission.cache_id == 0) {
    *signature = std::make_shared<Signature>(submission.signature);
    return Status::Ok();
  }
  const ResponseCache::Remembered* remembered =
      cache_->Get(submission.cache_id);
  if (remembered == nullptr) {
    auto retired = retired_.find(submission.cache_id);
    if (retired == retired_.end()) {
      return Internal("unknown cache number " +
                      std::to_string(submission.cache_id) + ".");
    }
    remembered = &retired->second.remembered;
  }
  key->name = remembered->name;
  *signature = remembered->signature;
  if ((*signature)->verb != Verb::kAllgather) return Status::Ok();
  if (submission.first_dims.size() != (*signature)->shapes.size()) {
    return Internal(
        "an allgather of " + std::to_string((*signature)->shapes.size()) +
        " tensors came with " + std::to_string(submission.first_dims.size()) +
        " first dimensions.");
  }
  auto own = std::make_shared<Signature>(**signature);
  for (size_t i = 0; i < own->shapes.size(); ++i) {
    own->shapes[i][0] = submission.first_dims[i];
  }
  *signature = std::move(own);
  return Status::Ok();
}

Status Leader::HandleItem(int rank, const Submission& submission,
                          Clock::time_point now) {
  Key key;
  Waiting waiting;
  HVD_RETURN_IF_ERROR(Resolve(submission, &key, &waiting.signature));
  if (waiting.signature->root < 0 || waiting.signature->root >= size_) {
    return Internal("a root of " + std::to_string(waiting.signature->root) +
                    " in a set of " + std::to_string(size_) + ".");
  }
  waiting.step = submission.step;
  waiting.error = submission.error;
  last_submission_ = now;
  mismatch_warned_ = false;
  if (FailIfDoomed(rank, key, submission.step)) return Status::Ok();
  if (FailIfScopeEnded(rank, key, submission.step)) return Status::Ok();
  Add(rank, key, std::move(waiting), now);
  return Status::Ok();
}

void Leader::Add(int rank, const Key& key, Waiting waiting,
                 Clock::time_point now) {
  Pending& pending = pending_[key];
  if (pending.fronts.empty()) {
    pending.key = key;
    pending.fronts.resize(size_);
    pending.since = pending.warned = now;
  }
  if (pending.fronts[rank].signature != nullptr) {
    pending.later.emplace_back(rank, std::move(waiting));
    return;
  }
  pending.fronts[rank] = std::move(waiting);
  if (++pending.ready < size_) return;
  for (auto found = pending_.find(key);
       found != pending_.end() && found->second.ready == size_;
       found = pending_.find(key)) {
    Decide(key);
  }
  EraseIfEmpty(key);
}

void Leader::ClearFronts(Pending* pending) {
  pending->fronts.assign(size_, Waiting());
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
}

void Leader::EraseIfEmpty(const Key& key) {
  auto found = pending_.find(key);
  if (found != pending_.end() && found->second.ready == 0 &&
      found->second.later.empty()) {
    pending_.erase(found);
  }
}

void Leader::Decide(const Key& key) {
  Pending* pending = &pending_.at(key);
  std::vector<RankRequest> requests(size_);
  std::vector<int64_t> steps(size_);
  for (int rank = 0; rank < size_; ++rank) {
    const Waiting& waiting = pending->fronts[rank];
    requests[rank] = {job_ranks_[rank], waiting.signature.get(),
                      &waiting.error};
    steps[rank] = waiting.step;
  }
  Status status = CheckAgreement(key.name, requests);
  if (!status.ok()) {
    ClearFronts(pending);
    std::vector<int> ranks(size_);
    std::iota(ranks.begin(), ranks.end(), 0);
    Fail(key, ranks, status);
    // TensorFlow aborts the step of an op that fails: here, all of them.
    Status why = PeerLost("Its step was aborted: " + status.message());
    for (int rank : ranks) HitStep(0, why, rank, steps[rank]);
    return;
  }
  step_aborts_.Correspond(steps);
  Agreed agreed{key, pending->fronts[0].signature, {}, 0, ++decisions_};
  if (agreed.signature->verb == Verb::kAllgather) {
    agreed.first_dims.resize(agreed.signature->shapes.size());
    for (size_t i = 0; i < agreed.first_dims.size(); ++i) {
      for (const Waiting& waiting : pending->fronts) {
        agreed.first_dims[i].push_back(waiting.signature->shapes[i][0]);
      }
    }
  }
  agreed.bytes = BytesOf(*agreed.signature, agreed.first_dims);
  agreed_.push_back(std::move(agreed));
  ClearFronts(pending);
}

std::optional<LogRecord> Leader::Next(int in_flight) {
  if (planned_.empty()) Plan(in_flight);
  std::optional<LogRecord> record;
  if (auto failure = NextFailure()) {
    record = LogRecord(std::move(*failure));
  } else if (static_cast<int64_t>(cache_->size()) > options_.cache_entries) {
    record = LogRecord(MakeEviction());
  } else if (!planned_.empty()) {
    record = LogRecord(MakeBatch(std::move(planned_.front())));
    planned_.pop_front();
  }
  if (record.has_value()) ++log_number_;
  return record;
}

std::optional<Failure> Leader::NextFailure() {
  for (auto failed = failures_.begin(); failed != failures_.end(); ++failed) {
    if (HeldBackSince(failed->failure.key, failed->decision)) continue;
    Failure failure = std::move(failed->failure);
    failures_.erase(failed);
    return failure;
  }
  return std::nullopt;
}

bool Leader::HeldBackSince(const Key& key, uint64_t decision) const {
  const auto is_older = [&](const Agreed& agreed) {
    return agreed.decision < decision && agreed.key == key;
  };
  if (std::any_of(agreed_.begin(), agreed_.end(), is_older)) return true;
  return std::any_of(planned_.begin(), planned_.end(), [&](const auto& batch) {
    return std::any_of(batch.begin(), batch.end(), is_older);
  });
}

size_t Leader::DifferentKeys() const {
  // Only a rank whose step was aborted submits again what is still under way.
  if (!step_aborts_.any()) return agreed_.size();
  std::unordered_set<Key, KeyHash> keys;
  size_t count = 0;
  while (count < agreed_.size() && keys.insert(agreed_[count].key).second) {
    ++count;
  }
  return count;
}

void Leader::Plan(int in_flight) {
  const int64_t room = options_.batches_in_flight - in_flight;
  if (agreed_.empty() || room <= 0) return;
  std::vector<FusionCandidate> candidates(DifferentKeys());
  for (size_t i = 0; i < candidates.size(); ++i) {
    candidates[i] = {agreed_[i].signature.get(), agreed_[i].bytes};
  }
  std::vector<bool> planned(agreed_.size(), false);
  for (const std::vector<size_t>& positions :
       PlanFusion(candidates, options_.fusion_bytes)) {
    // What does not fit on the wire now may still grow.
    if (static_cast<int64_t>(planned_.size()) == room) break;
    std::vector<Agreed>& batch = planned_.emplace_back();
    for (size_t position : positions) {
      batch.push_back(std::move(agreed_[position]));
      planned[position] = true;
    }
  }
  std::vector<Agreed> kept;
  for (size_t i = 0; i < agreed_.size(); ++i) {
    if (!planned[i]) kept.push_back(std::move(agreed_[i]));
  }
  agreed_ = std::move(kept);
}

// Called when the record is given out, so that the cache is what every member
// will have when it carries the record out.
AgreedBatch Leader::MakeBatch(std::vector<Agreed> tensors) {
  AgreedBatch batch;
  std::map<std::string, CacheId> added;  // a loop's instances share a name
  for (Agreed& agreed : tensors) {
    AgreedTensor tensor;
    tensor.key.instance = agreed.key.instance;
    tensor.first_dims = std::move(agreed.first_dims);
    tensor.cache_id = cache_->Find(agreed.key.name, *agreed.signature);
    if (tensor.cache_id != 0) {
      cache_->Touch(tensor.cache_id);
    } else {
      tensor.key.name = agreed.key.name;
      if (options_.cache_entries > 0 && added.count(agreed.key.name) == 0) {
        Retire(cache_->IdOf(agreed.key.name));
        tensor.cache_id = next_id_++;
        added[agreed.key.name] = tensor.cache_id;
      }
    }
    batch.tensors.push_back(std::move(tensor));
  }
  return batch;
}

Eviction Leader::MakeEviction() {
  Eviction eviction;
  size_t excess = cache_->size() - static_cast<size_t>(options_.cache_entries);
  eviction.ids = cache_->Oldest(excess);
  for (CacheId id : eviction.ids) Retire(id);
  return eviction;
}

void Leader::Retire(CacheId id) {
  const ResponseCache::Remembered* remembered = cache_->Get(id);
  if (remembered == nullptr) return;
  retired_[id] = {*remembered, log_number_ + 1};
}

void Leader::ForgetRetired() {
  if (retired_.empty()) return;
  uint64_t seen = *std::min_element(log_seen_.begin(), log_seen_.end());
  for (auto retired = retired_.begin(); retired != retired_.end();) {
    retired = retired->second.number <= seen ? retired_.erase(retired)
                                             : std::next(retired);
  }
}

}  // namespace hvd
