// SPDX-License-Identifier: Apache-2.0
// Keeps what hosts have submitted by number and by name.
#include "core/control/host_matcher.h"

namespace hvd {

HostMatcher::Partial* HostMatcher::Find(SignatureNumber number) {
  const auto found = partials_.find(number);
  return found == partials_.end() ? nullptr : &found->second;
}

SignatureNumber HostMatcher::NumberOf(const std::string& name) const {
  if (by_name_.empty()) return 0;
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? 0 : found->second;
}

HostMatcher::Partial* HostMatcher::Begin(
    SignatureNumber number, const ResponseCache::Remembered& remembered,
    Clock::time_point now) {
  Partial* const partial = &partials_.FindOrInsert(number)->second;
  partial->remembered = remembered;
  partial->steps.assign(static_cast<size_t>(host_count_), nullptr);
  partial->count = 0;
  partial->since = now;
  by_name_[remembered.key.name] = number;
  return partial;
}

void HostMatcher::Erase(SignatureNumber number) {
  const auto found = partials_.find(number);
  by_name_.erase(found->second.remembered.key.name);
  // The steps are freed, and the rest is kept for the next.
  found->second.steps.assign(static_cast<size_t>(host_count_), nullptr);
  found->second.remembered.signature.reset();
  partials_.Erase(found);
}

std::vector<SignatureNumber> HostMatcher::Since(
    Clock::time_point latest) const {
  std::vector<SignatureNumber> numbers;
  for (const auto& [number, partial] : partials_) {
    if (partial.since <= latest) numbers.push_back(number);
  }
  return numbers;
}

}  // namespace hvd
