// SPDX-License-Identifier: Apache-2.0
// The part of Negotiator that applies the set's log.
#include <algorithm>
#include <new>
#include <utility>

#include "core/control/negotiator.h"
#include "core/control/record_check.h"
#include "core/quoted.h"
#include "core/trace.h"
#include "core/verbs/verb_rules.h"

namespace hvd {

Status Negotiator::HandleLog(const LogMessage& log) {
  if (log.first_number != log_seen_ + 1) {
    return Internal("log record " + std::to_string(log.first_number) +
                    " of set " + std::to_string(serial_) + " came after " +
                    std::to_string(log_seen_) + ".");
  }
  HandOn(log);
  for (const LogRecord& record : log.records) {
    HVD_RETURN_IF_ERROR(Apply(record));
  }
  FailIfEnded();
  return Status::Ok();
}

Status Negotiator::Apply(const LogRecord& record) {
  const Skipped* const skipped = std::get_if<Skipped>(&record);
  log_seen_ += skipped != nullptr ? skipped->count : 1;
  // A member that has ended takes no part in this record.
  if (last_log_number_.has_value() && log_seen_ > *last_log_number_) {
    return Status::Ok();
  }
  if (is_closed_) return Status::Ok();
  log_taken_ = log_seen_;
  return std::visit([this](const auto& value) { return Apply(value); }, record);
}

Status Negotiator::Apply(const AgreedBatch& batch) {
  ReadyBatch ready;
  ready.log_number = log_seen_;
  ready.absent = batch.absent;
  ready.divisor = batch.divisor;
  // This rank fails. Nobody else answers the entries that it has taken out.
  const auto fail_taken = [&ready](const Status& why) {
    for (const Outstanding& lost : ready.tensors) {
      if (lost.cancelled) continue;
      lost.entry->done(FailureOf(lost.entry->request.key.name, why));
    }
  };
  Status status;
  try {
    status = CheckAbsent(batch, size_);
    if (status.ok()) status = TakeBatch(batch, &ready);
    if (status.ok()) status = CheckBatch(ready, rank_, size_);
    if (status.ok()) {
      if (trace_ != nullptr) trace_->Agreed(serial_, ready);
      ready_.emplace_back(std::move(ready));
      if (UsesWire(ready_.back())) ++ready_for_wire_;
      return status;
    }
  } catch (const std::bad_alloc&) {
    fail_taken(
        ResourceExhausted("this rank is out of memory; start fewer ranks on "
                          "its host, or train on smaller batches."));
    throw;
  }
  fail_taken(status);
  return status;
}

Status Negotiator::TakeBatch(const AgreedBatch& batch, ReadyBatch* ready) {
  ready->tensors.reserve(batch.tensors.size());
  ready->first_dims.reserve(batch.tensors.size());
  const bool is_absent =
      std::binary_search(batch.absent.begin(), batch.absent.end(), rank_);
  for (const AgreedTensor& tensor : batch.tensors) {
    Key composed;
    const Result<const Key*> key =
        Resolve(tensor.signature_number, tensor.key, &composed);
    if (!key.ok()) return key.status();
    if (is_absent) {
      Result<Outstanding> absent = MakeAbsent(tensor, *key.value());
      if (!absent.ok()) return absent.status();
      ready->tensors.push_back(std::move(absent.value()));
    } else if (!Take(*key.value(), 0, &ready->tensors)) {
      return Internal("the log agrees on " + Quoted(key.value()->name) +
                      ", which this rank has not submitted.");
    }
    if (tensor.signature_number != 0 && !tensor.key.name.empty()) {
      if (cache_.Get(tensor.signature_number) != nullptr) {
        return Internal("the log gives the cache number " +
                        std::to_string(tensor.signature_number) + " twice.");
      }
      const Request& request = ready->tensors.back().entry->request;
      cache_.Insert(tensor.signature_number, key.value()->name,
                    std::make_shared<Signature>(request.signature));
    }
    ready->first_dims.push_back(tensor.first_dims);
  }
  return Status::Ok();
}

Result<Outstanding> Negotiator::MakeAbsent(const AgreedTensor& tensor,
                                           const Key& key) const {
  const ResponseCache::Remembered* const remembered =
      cache_.Get(tensor.signature_number);
  const Signature* signature = tensor.signature.has_value() ? &*tensor.signature
                               : remembered != nullptr
                                   ? remembered->signature.get()
                                   : nullptr;
  if (signature == nullptr) {
    return Internal("the log agrees on " + Quoted(key.name) +
                    " without its signature, which this rank has not.");
  }
  HVD_RETURN_IF_ERROR(CheckShapes(key.name, *signature));
  Outstanding absent{std::make_shared<Entry>(), true};
  Entry& entry = *absent.entry;
  entry.request.key = key;
  entry.request.signature = *signature;
  const size_t count = signature->shapes.size();
  if (RulesOf(signature->verb).first_dim_varies) {
    for (Shape& shape : entry.request.signature.shapes) shape[0] = 0;
  }
  if (RulesOf(signature->verb).has_splits) {
    entry.splits.assign(count, std::vector<int64_t>(size_, 0));
  }
  const size_t buffers = count * BuffersOf(signature->verb);
  entry.inputs.assign(buffers, nullptr);
  entry.outputs.assign(buffers, nullptr);
  return absent;
}

Result<const Key*> Negotiator::Resolve(SignatureNumber number, const Key& key,
                                       Key* memory) const {
  if (!key.name.empty()) return &key;
  const ResponseCache::Remembered* remembered = cache_.Get(number);
  if (remembered == nullptr) {
    return Internal("the log names an unknown cache number " +
                    std::to_string(number) + ".");
  }
  return &remembered->KeyOf(key.instance, memory);
}

Status Negotiator::Apply(const Failure& failure) {
  if (failure.status.ok()) return Internal("the log fails without a reason.");
  for (const FailedKey& failed : failure.keys) {
    const auto count = std::count_if(
        failed.ranks.begin(), failed.ranks.end(), [this](const RankRange& r) {
          return r.first <= rank_ && rank_ <= r.last;
        });
    if (count == 0) continue;
    Key composed;
    const Result<const Key*> key =
        Resolve(failed.signature_number, failed.key, &composed);
    if (!key.ok()) return key.status();
    std::vector<Outstanding> taken;
    Status status;
    for (auto i = count; i > 0 && status.ok(); --i) {
      if (Take(*key.value(), failed.older, &taken)) continue;
      status = Internal("the log fails " + Quoted(key.value()->name) +
                        ", which this rank has not submitted.");
    }
    for (const Outstanding& lost : taken) {
      if (lost.cancelled) continue;
      if (trace_ != nullptr) trace_->Failed(*lost.entry);
      lost.entry->done(failure.status);
    }
    HVD_RETURN_IF_ERROR(status);
  }
  return Status::Ok();
}

Status Negotiator::Apply(const Joined& joined) {
  if (joined.last_rank >= size_) {
    return Internal("the log says that rank " +
                    std::to_string(joined.last_rank) + " of " +
                    std::to_string(size_) + " joined last.");
  }
  if (gatherer_ != nullptr) gatherer_->ForgetJoined();
  Result<JoinCallPtr> call = TakeJoin();
  if (!call.ok()) return call.status();
  if (call.value() != nullptr)
    call.value()->done(Status::Ok(), joined.last_rank);
  return Status::Ok();
}

Status Negotiator::Apply(const JoinWithdrawn& withdrawn) {
  if (withdrawn.rank != rank_) return Status::Ok();
  if (!joins_.empty() && joins_.front() != nullptr) {
    return Internal("the log takes back a join, which still waits.");
  }
  return TakeJoin().status();
}

Result<JoinCallPtr> Negotiator::TakeJoin() {
  if (joins_.empty()) {
    return Internal("the log answers a join, which this rank has not called.");
  }
  JoinCallPtr call = std::move(joins_.front());
  joins_.pop_front();
  return call;
}

Status Negotiator::Apply(const Tuning& tuning) {
  HVD_RETURN_IF_ERROR(CheckTuning(tuning, most_chunk_bytes_));
  ready_.emplace_back(tuning);
  return Status::Ok();
}

Status Negotiator::Apply(const Eviction& eviction) {
  for (SignatureNumber number : eviction.numbers) cache_.Erase(number);
  return Status::Ok();
}

Status Negotiator::Apply(const SetChange& change) {
  if (change.step == SetStep::kClose) {
    if (change.status.ok()) return Internal("the log ends without a reason.");
    FailAll(change.status);
    return Status::Ok();
  }
  if (serial_ != 0) {
    return Internal("the log of set " + std::to_string(serial_) +
                    " changes process sets.");
  }
  set_changes_.push_back({change, log_seen_});
  return Status::Ok();
}

bool Negotiator::Take(const Key& key, int older,
                      std::vector<Outstanding>* taken) {
  const auto found = outstanding_.find(key);
  if (found == outstanding_.end()) return false;
  Queue& queue = found->second;
  if (static_cast<size_t>(older) >= queue.size()) return false;
  const auto place = queue.begin() + older;
  taken->push_back(std::move(*place));
  queue.erase(place);
  if (!by_ticket_.empty()) by_ticket_.clear();
  if (queue.empty()) outstanding_.Erase(found);
  return true;
}

}  // namespace hvd
