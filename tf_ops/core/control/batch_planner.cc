// SPDX-License-Identifier: Apache-2.0
// Holds agreed tensors back, and fuses them when the wire has room.
#include "core/control/batch_planner.h"

#include <unordered_set>
#include <utility>

#include "core/control/fusion.h"

namespace hvd {

void BatchPlanner::Plan(int64_t room, int64_t fusion_bytes, bool keys_repeat) {
  if (held_back_.empty() || room <= 0) return;
  std::vector<FusionCandidate> candidates(keys_repeat ? DifferentKeys()
                                                      : held_back_.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    candidates[i] = {held_back_[i].signature.get(), held_back_[i].bytes,
                     held_back_[i].absent.get()};
  }
  std::vector<bool> planned(held_back_.size(), false);
  for (const std::vector<size_t>& positions :
       PlanFusion(candidates, fusion_bytes)) {
    // A batch that the wire has no room for may still grow.
    if (static_cast<int64_t>(batches_.size()) == room) break;
    std::vector<Agreed>& batch = batches_.emplace_back();
    batch.reserve(positions.size());
    for (size_t position : positions) {
      batch.push_back(std::move(held_back_[position]));
      planned[position] = true;
    }
  }
  size_t kept = 0;
  for (size_t i = 0; i < held_back_.size(); ++i) {
    if (planned[i]) continue;
    if (kept != i) held_back_[kept] = std::move(held_back_[i]);
    ++kept;
  }
  held_back_.resize(kept);
}

size_t BatchPlanner::DifferentKeys() const {
  std::unordered_set<Key, KeyHash> keys;
  size_t count = 0;
  while (count < held_back_.size() &&
         keys.insert(held_back_[count].key).second) {
    ++count;
  }
  return count;
}

std::vector<Agreed> BatchPlanner::TakeBatch() {
  std::vector<Agreed> batch = std::move(batches_.front());
  batches_.pop_front();
  return batch;
}

std::unordered_map<Key, uint64_t, KeyHash> BatchPlanner::FirstAgreements()
    const {
  std::unordered_map<Key, uint64_t, KeyHash> first;
  for (const std::vector<Agreed>& batch : batches_) {
    for (const Agreed& agreed : batch) {
      first.try_emplace(agreed.key, agreed.agreement);
    }
  }
  for (const Agreed& agreed : held_back_) {
    first.try_emplace(agreed.key, agreed.agreement);
  }
  return first;
}

}  // namespace hvd
