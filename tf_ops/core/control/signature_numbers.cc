// SPDX-License-Identifier: Apache-2.0
// Names tensors by numbers, and remembers numbers that members may still use.
#include "core/control/signature_numbers.h"

#include <set>
#include <utility>

#include "core/verbs/verb_rules.h"

namespace hvd {

const ResponseCache::Remembered* SignatureNumbers::Recall(
    SignatureNumber number) const {
  const ResponseCache::Remembered* remembered = cache_.Get(number);
  if (remembered != nullptr) return remembered;
  const auto retired = retired_.find(number);
  return retired == retired_.end() ? nullptr : &retired->second;
}

AgreedBatch SignatureNumbers::MakeBatch(std::vector<Agreed> tensors,
                                        uint64_t log_number) {
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
    if (!is_renamed) tensor.signature_number = NumberOf(agreed);
    if (tensor.signature_number != 0) {
      cache_.Touch(tensor.signature_number);
    } else {
      tensor.key.name = agreed.key.name;
      if (most_ > 0 && !is_renamed) {
        Retire(cache_.NumberOf(agreed.key.name), log_number);
        tensor.signature_number = next_number_++;
        renamed.insert(agreed.key.name);
      }
    }
    if (agreed.absent != nullptr && !tensor.key.name.empty()) {
      tensor.signature = *agreed.signature;
    }
    batch.tensors.push_back(std::move(tensor));
  }
  if (const auto& absent = tensors[0].absent) batch.absent = *absent;
  // After all touches, so that a new number counts as used later than those.
  for (size_t i = 0; i < tensors.size(); ++i) {
    const AgreedTensor& tensor = batch.tensors[i];
    if (tensor.signature_number == 0 || tensor.key.name.empty()) continue;
    cache_.Insert(tensor.signature_number, tensor.key.name,
                  std::move(tensors[i].signature));
  }
  return batch;
}

SignatureNumber SignatureNumbers::NumberOf(const Agreed& agreed) const {
  // A name has one number at a time.
  const auto* remembered = cache_.Get(agreed.signature_number);
  if (remembered != nullptr &&
      SameButFirstDims(*remembered->signature, *agreed.signature)) {
    return agreed.signature_number;
  }
  return cache_.Find(agreed.key.name, *agreed.signature);
}

Eviction SignatureNumbers::Evict(uint64_t log_number) {
  Eviction eviction;
  size_t excess = cache_.size() - static_cast<size_t>(most_);
  eviction.numbers = cache_.Oldest(excess);
  for (SignatureNumber number : eviction.numbers) {
    Retire(number, log_number);
    cache_.Erase(number);
  }
  return eviction;
}

void SignatureNumbers::Retire(SignatureNumber number, uint64_t log_number) {
  const ResponseCache::Remembered* remembered = cache_.Get(number);
  if (remembered == nullptr) return;
  retired_[number] = *remembered;
  retired_order_.emplace_back(log_number, number);
}

void SignatureNumbers::ForgetRetired(uint64_t log_number) {
  while (!retired_order_.empty() &&
         retired_order_.front().first <= log_number) {
    retired_.erase(retired_order_.front().second);
    retired_order_.pop_front();
  }
}

}  // namespace hvd
