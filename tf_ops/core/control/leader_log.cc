// SPDX-License-Identifier: Apache-2.0
// The part of Leader that writes the log: batches, numbers and evictions.
#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/control/fusion.h"
#include "core/control/leader.h"
#include "core/verbs/verb_rules.h"

namespace hvd {

std::optional<LogRecord> Leader::Next(int in_flight, Clock::time_point now) {
  if (autotuner_ != nullptr) Tune(in_flight, now);
  if (planned_.empty()) Plan(in_flight);
  std::optional<LogRecord> record;
  if (auto failure = NextFailure()) {
    record = LogRecord(std::move(*failure));
  } else if (tuning_news_.has_value()) {
    record = LogRecord(*tuning_news_);
    tuning_news_.reset();
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
  if (failures_.empty()) return std::nullopt;
  // The first agreement on each key that is not in the log yet.
  std::unordered_map<Key, uint64_t, KeyHash> held_back;
  for (const auto& batch : planned_) {
    for (const Agreed& agreed : batch) {
      held_back.try_emplace(agreed.key, agreed.number);
    }
  }
  for (const Agreed& agreed : agreed_) {
    held_back.try_emplace(agreed.key, agreed.number);
  }
  std::optional<Failure> failure =
      failures_.Take([&](const Key& key, uint64_t agreements) {
        const auto first = held_back.find(key);
        return first != held_back.end() && first->second <= agreements;
      });
  if (!failure.has_value()) return failure;
  for (FailedKey& failed : failure->keys) {
    failed.cache_id = cache_->IdOf(failed.key.name);
    if (failed.cache_id != 0) failed.key.name.clear();
  }
  return failure;
}

size_t Leader::DifferentKeys() const {
  // Only a rank whose step was aborted submits a key that is still under way.
  if (!step_aborts_.any()) return agreed_.size();
  std::unordered_set<Key, KeyHash> keys;
  size_t count = 0;
  while (count < agreed_.size() && keys.insert(agreed_[count].key).second) {
    ++count;
  }
  return count;
}

void Leader::Plan(int in_flight) {
  const int64_t room = tuning_.batches_in_flight - in_flight;
  if (agreed_.empty() || room <= 0) return;
  std::vector<FusionCandidate> candidates(DifferentKeys());
  for (size_t i = 0; i < candidates.size(); ++i) {
    candidates[i] = {agreed_[i].signature.get(), agreed_[i].bytes};
  }
  std::vector<bool> planned(agreed_.size(), false);
  for (const std::vector<size_t>& positions :
       PlanFusion(candidates, tuning_.fusion_bytes)) {
    // A batch that the wire has no room for may still grow.
    if (static_cast<int64_t>(planned_.size()) == room) break;
    std::vector<Agreed>& batch = planned_.emplace_back();
    batch.reserve(positions.size());
    for (size_t position : positions) {
      batch.push_back(std::move(agreed_[position]));
      planned[position] = true;
    }
  }
  size_t kept = 0;
  for (size_t i = 0; i < agreed_.size(); ++i) {
    if (planned[i]) continue;
    if (kept != i) agreed_[kept] = std::move(agreed_[i]);
    ++kept;
  }
  agreed_.resize(kept);
}

// Called when the record is given out. The cache is then as every member will
// have it when it applies the record.
AgreedBatch Leader::MakeBatch(std::vector<Agreed> tensors) {
  AgreedBatch batch;
  batch.tensors.reserve(tensors.size());
  std::set<std::string> renamed;  // a loop's instances share a name
  for (Agreed& agreed : tensors) {
    AgreedTensor tensor;
    tensor.key.instance = agreed.key.instance;
    tensor.first_dims = std::move(agreed.first_dims);
    // An earlier tensor of this batch may have given the name another number. A
    // member has then forgotten the number that the name had before the batch.
    const bool is_renamed = renamed.count(agreed.key.name) > 0;
    if (!is_renamed) tensor.cache_id = NumberOf(agreed);
    if (tensor.cache_id != 0) {
      cache_->Touch(tensor.cache_id);
    } else {
      tensor.key.name = agreed.key.name;
      if (options_.cache_entries > 0 && !is_renamed) {
        Retire(cache_->IdOf(agreed.key.name));
        tensor.cache_id = next_id_++;
        renamed.insert(agreed.key.name);
      }
    }
    batch.tensors.push_back(std::move(tensor));
  }
  return batch;
}

CacheId Leader::NumberOf(const Agreed& agreed) const {
  // A name has one number at a time.
  const auto* remembered = cache_->Get(agreed.id);
  if (remembered != nullptr &&
      SameButFirstDims(*remembered->signature, *agreed.signature)) {
    return agreed.id;
  }
  return cache_->Find(agreed.key.name, *agreed.signature);
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
