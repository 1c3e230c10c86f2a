// SPDX-License-Identifier: Apache-2.0
// Replaces the snapshot with every change.
#include "core/set_registry.h"

#include <utility>

namespace hvd {

ProcessSetPtr SetRegistry::Find(int id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = sets_->find(id);
  return found == sets_->end() ? nullptr : found->second;
}

std::shared_ptr<const SetRegistry::Sets> SetRegistry::all() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return sets_;
}

void SetRegistry::Add(ProcessSetPtr set) {
  auto changed = std::make_shared<Sets>(*all());
  const int id = set->id;
  (*changed)[id] = std::move(set);
  std::lock_guard<std::mutex> lock(mutex_);
  sets_ = std::move(changed);
}

void SetRegistry::Remove(int id) {
  auto changed = std::make_shared<Sets>(*all());
  changed->erase(id);
  std::lock_guard<std::mutex> lock(mutex_);
  sets_ = std::move(changed);
}

}  // namespace hvd
