// SPDX-License-Identifier: Apache-2.0
// Keeps agreed signatures by number, by name and by use.
#include "core/control/response_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/verbs/verb_rules.h"

namespace hvd {

const Key& ResponseCache::Remembered::KeyOf(uint64_t instance,
                                            Key* memory) const {
  if (instance == 0) return key;
  *memory = {key.name, instance};
  return *memory;
}

SignatureNumber ResponseCache::Find(const std::string& name,
                                    const Signature& signature) const {
  SignatureNumber number = NumberOf(name);
  if (number == 0) return 0;
  return SameButFirstDims(*by_number_.at(number).remembered.signature,
                          signature)
             ? number
             : 0;
}

const ResponseCache::Remembered* ResponseCache::Get(
    SignatureNumber number) const {
  auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : &found->second.remembered;
}

SignatureNumber ResponseCache::NumberOf(const std::string& name) const {
  auto found = by_name_.find(name);
  return found == by_name_.end() ? 0 : found->second;
}

void ResponseCache::Insert(SignatureNumber number, std::string name,
                           std::shared_ptr<const Signature> signature) {
  Erase(NumberOf(name));
  by_name_[name] = number;
  auto position = by_use_.insert(by_use_.end(), number);
  by_number_[number] =
      Slot{{{std::move(name), 0}, std::move(signature)}, position};
}

void ResponseCache::Erase(SignatureNumber number) {
  auto found = by_number_.find(number);
  if (found == by_number_.end()) return;
  by_name_.erase(found->second.remembered.key.name);
  by_use_.erase(found->second.position);
  by_number_.erase(found);
}

void ResponseCache::Touch(SignatureNumber number) {
  auto found = by_number_.find(number);
  if (found == by_number_.end()) return;
  by_use_.splice(by_use_.end(), by_use_, found->second.position);
}

std::vector<SignatureNumber> ResponseCache::Oldest(size_t count) const {
  auto end = by_use_.begin();
  std::advance(end, std::min(count, by_use_.size()));
  return std::vector<SignatureNumber>(by_use_.begin(), end);
}

}  // namespace hvd
