// SPDX-License-Identifier: Apache-2.0
// The part of Leader that takes submissions to the matcher.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "core/control/leader.h"
#include "core/control/record_check.h"
#include "core/verbs/verb_rules.h"

namespace hvd {
namespace {

Status UnknownNumber(SignatureNumber number) {
  return Internal("unknown cache number " + std::to_string(number) + ".");
}

// For a submission under a number. Where the log has the first dimensions, it
// comes with one for each shape.
Status CheckFirstDims(const Signature& signature, const Shape& first_dims,
                      int size) {
  const size_t due =
      SizesInLog(signature.verb, size) ? signature.shapes.size() : 0;
  if (first_dims.size() != due) {
    return Internal(std::string(Name(signature.verb)) + " of " +
                    std::to_string(signature.shapes.size()) +
                    " tensors came with " + std::to_string(first_dims.size()) +
                    " first dimensions.");
  }
  if (due == 0 || FitsMemory(signature, first_dims)) return Status::Ok();
  return Internal(std::string(Name(signature.verb)) +
                  " came with the first dimensions " + ToString(first_dims) +
                  ", which make no sense.");
}

}  // namespace

Status Leader::HandleItem(int rank, const Submission& submission,
                          Clock::time_point now) {
  Key composed;
  const Key* key = &submission.key;
  const Signature* signature = &submission.signature;
  std::shared_ptr<const Signature> kept;
  if (submission.signature_number != 0) {
    const auto* remembered = numbers_.Recall(submission.signature_number);
    if (remembered == nullptr)
      return UnknownNumber(submission.signature_number);
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
  MoveToMatcher(*key);
  if (!Admit(rank, *key, submission.step, now)) return Status::Ok();
  Status error = submission.error;
  if (error.ok() && kept == nullptr && !FitsMemory(*signature)) {
    error = InvalidArgument("its shapes are larger than any memory.");
  }
  Waiting waiting{nullptr, submission.step, nullptr};
  const bool tells_sizes = SizesInLog(signature->verb, size_);
  if (tells_sizes || !error.ok()) {
    waiting.extra = std::make_unique<Matcher::Extra>();
    waiting.extra->error = std::move(error);
    if (tells_sizes) {
      waiting.extra->first_dims =
          kept != nullptr ? submission.first_dims : FirstDims(*signature);
    }
  }
  Pending* pending = matcher_.FindOrAdd(*key, now);
  matcher_.SetSignature(&waiting, pending, *signature, kept);
  Add(rank, pending, std::move(waiting));
  return Status::Ok();
}

Status Leader::HandleItem(int rank, const CachedSubmissions& cached,
                          Clock::time_point now) {
  Span<int64_t> dims(cached.first_dims);
  for (SignatureNumber number : cached.numbers) {
    Waiting waiting{nullptr, cached.step, nullptr};
    if (Pending* pending = matcher_.FindByNumber(number)) {
      HVD_RETURN_IF_ERROR(TakeFirstDims(*pending->signature, &dims, &waiting));
      if (!Admit(rank, pending->key, cached.step, now)) continue;
      waiting.signature = pending->signature.get();
      Add(rank, pending, std::move(waiting));
      continue;
    }
    const auto* remembered = numbers_.Recall(number);
    if (remembered == nullptr) return UnknownNumber(number);
    const auto& signature = remembered->signature;
    HVD_RETURN_IF_ERROR(TakeFirstDims(*signature, &dims, &waiting));
    MoveToMatcher(remembered->key);
    if (!Admit(rank, remembered->key, cached.step, now)) continue;
    Pending* pending = matcher_.FindOrAdd(remembered->key, now);
    matcher_.SetSignature(&waiting, pending, *signature, signature);
    // But not if another rank has asked for something else under the name.
    if (waiting.signature == pending->signature.get()) {
      matcher_.SetNumber(pending, number);
    }
    Add(rank, pending, std::move(waiting));
  }
  if (dims.size() == 0) return Status::Ok();
  return Internal(std::to_string(dims.size()) +
                  " first dimensions came without a tensor.");
}

Status Leader::TakeFirstDims(const Signature& signature, Span<int64_t>* dims,
                             Waiting* waiting) const {
  if (!SizesInLog(signature.verb, size_)) return Status::Ok();
  const auto count =
      std::min(static_cast<int64_t>(signature.shapes.size()), dims->size());
  waiting->extra = std::make_unique<Matcher::Extra>();
  waiting->extra->first_dims.assign(dims->begin(), dims->begin() + count);
  *dims = {dims->begin() + count, dims->size() - count};
  return CheckFirstDims(signature, waiting->extra->first_dims, size_);
}

bool Leader::Admit(int rank, const Key& key, int64_t step,
                   Clock::time_point now) {
  matcher_.Heard(now);
  return !aborts_.FailIfDoomed(rank, key, step);
}

void Leader::Add(int rank, Pending* pending, Waiting waiting) {
  if (!matcher_.Add(rank, pending, std::move(waiting))) return;
  while (pending != nullptr && matcher_.IsComplete(*pending)) {
    pending = Decide(pending);
  }
  if (pending != nullptr) matcher_.EraseIfEmpty(pending->key);
}

}  // namespace hvd
