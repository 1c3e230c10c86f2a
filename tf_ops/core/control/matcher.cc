// SPDX-License-Identifier: Apache-2.0
// Keeps submissions by key, by rank and in their order.
#include "core/control/matcher.h"

#include <algorithm>

#include "core/verbs/verb_rules.h"

namespace hvd {

int Matcher::Pending::PlacesOf(int rank) const {
  if (!has(rank)) return 0;
  return 1 + static_cast<int>(std::count_if(
                 later.begin(), later.end(),
                 [rank](const auto& other) { return other.first == rank; }));
}

const Matcher::Waiting* Matcher::Pending::At(int rank, int place) const {
  if (!has(rank)) return nullptr;
  if (place == 0) return &fronts[rank];
  for (const auto& [later_rank, waiting] : later) {
    if (later_rank == rank && --place == 0) return &waiting;
  }
  return nullptr;
}

int Matcher::Pending::PlaceOf(int rank, int64_t step) const {
  int place = PlacesOf(rank) - 1;
  while (place >= 0 && At(rank, place)->step != step) --place;
  return place;
}

void Matcher::Join(int rank) {
  if (has_joined_[rank]) return;
  has_joined_[rank] = true;
  ++joined_count_;
}

void Matcher::Unjoin(int rank) {
  if (!has_joined_[rank]) return;
  has_joined_[rank] = false;
  --joined_count_;
}

bool Matcher::IsCompleteWithJoined(const Pending& pending) const {
  if (pending.ready == 0) return false;
  for (int rank = 0; rank < size_; ++rank) {
    if (!pending.has(rank) && !has_joined_[rank]) return false;
  }
  return true;
}

Matcher::Pending* Matcher::Find(const Key& key) {
  if (pending_.empty()) return nullptr;
  const auto found = pending_.find(key);
  return found == pending_.end() ? nullptr : &found->second;
}

Matcher::Pending* Matcher::FindOrAdd(const Key& key, Clock::time_point now) {
  Pending* pending = &pending_.FindOrInsert(key)->second;
  if (pending->ready == 0 && pending->later.empty()) {
    pending->key = key;
    pending->fronts.resize(size_);
    pending->since = now;
  }
  return pending;
}

void Matcher::SetNumber(Pending* pending, SignatureNumber number) {
  if (pending->number != 0) return;
  pending->number = number;
  pending_by_number_.FindOrInsert(number)->second = pending;
}

void Matcher::SetSignature(Waiting* waiting, Pending* pending,
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
    if (waiting->extra == nullptr) {
      waiting->extra = std::make_unique<Extra>();
    }
    waiting->extra->signature = keep();
    waiting->signature = waiting->extra->signature.get();
  }
}

void Matcher::ClearFronts(Pending* pending) {
  for (Waiting& front : pending->fronts) front = Waiting();
  pending->ready = 0;
  std::vector<std::pair<int, Waiting>> later;
  later.swap(pending->later);
  for (auto& [rank, waiting] : later) {
    if (pending->has(rank)) {
      pending->later.emplace_back(rank, std::move(waiting));
      continue;
    }
    pending->fronts[rank] = std::move(waiting);
    ++pending->ready;
  }
  // The rest are later submissions, which have not waited yet.
  pending->since = last_submission_;
}

void Matcher::TakeOut(Pending* pending, int rank, int place) {
  Waiting* free = place == 0 ? &pending->fronts[rank] : nullptr;
  auto last = pending->later.end();
  for (auto later = pending->later.begin(); later != pending->later.end();
       ++later) {
    if (later->first != rank) continue;
    last = later;
    if (free != nullptr) *free = std::move(later->second);
    if (free != nullptr || --place == 0) free = &later->second;
  }
  if (last != pending->later.end()) {
    pending->later.erase(last);
  } else {
    *free = Waiting();
    --pending->ready;
  }
}

void Matcher::EraseIfEmpty(const Key& key) {
  const auto found = pending_.find(key);
  if (found == pending_.end()) return;
  Pending& pending = found->second;
  if (pending.ready > 0 || !pending.later.empty()) return;
  if (pending.number != 0)
    pending_by_number_.Erase(pending_by_number_.find(pending.number));
  pending.number = 0;
  pending.signature.reset();
  pending_.Erase(found);
}

}  // namespace hvd
