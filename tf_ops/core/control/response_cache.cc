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

CacheId ResponseCache::Find(const std::string& name,
                            const Signature& signature) const {
  CacheId id = IdOf(name);
  if (id == 0) return 0;
  return SameButFirstDims(*by_id_.at(id).remembered.signature, signature) ? id
                                                                          : 0;
}

const ResponseCache::Remembered* ResponseCache::Get(CacheId id) const {
  auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &found->second.remembered;
}

CacheId ResponseCache::IdOf(const std::string& name) const {
  auto found = by_name_.find(name);
  return found == by_name_.end() ? 0 : found->second;
}

void ResponseCache::Insert(CacheId id, std::string name,
                           std::shared_ptr<const Signature> signature) {
  Erase(IdOf(name));
  by_name_[name] = id;
  auto position = by_use_.insert(by_use_.end(), id);
  by_id_[id] = Slot{{{std::move(name), 0}, std::move(signature)}, position};
}

void ResponseCache::Erase(CacheId id) {
  auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  by_name_.erase(found->second.remembered.key.name);
  by_use_.erase(found->second.position);
  by_id_.erase(found);
}

void ResponseCache::Touch(CacheId id) {
  auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  by_use_.splice(by_use_.end(), by_use_, found->second.position);
}

std::vector<CacheId> ResponseCache::Oldest(size_t count) const {
  auto end = by_use_.begin();
  std::advance(end, std::min(count, by_use_.size()));
  return std::vector<CacheId>(by_use_.begin(), end);
}

}  // namespace hvd
