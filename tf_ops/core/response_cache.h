// SPDX-License-Identifier: Apache-2.0
// ResponseCache: signatures that a set has agreed on, under small numbers.
#ifndef HVD_CORE_RESPONSE_CACHE_H_
#define HVD_CORE_RESPONSE_CACHE_H_

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/message.h"
#include "core/request.h"

namespace hvd {

// Each rank has one per set, changed only by log records, so that all ranks'
// are the same at the same record; signatures are the rank's own (they differ
// in an allgather's first dimensions). The leader alone chooses numbers and
// evictions. Numbers are never used twice. Background thread only.
class ResponseCache {
 public:
  struct Remembered {
    Key key;  // the name's, outside loops
    std::shared_ptr<const Signature> signature;

    // The name's key in any iteration; `memory` is where one of a loop is made.
    const Key& KeyOf(uint64_t instance, Key* memory) const;
  };

  // Number under which this rank may submit the request, or 0. First
  // dimensions of an allgather do not matter.
  CacheId Find(const std::string& name, const Signature& signature) const;

  // Null when unknown (never known, or evicted).
  const Remembered* Get(CacheId id) const;

  // The number that stands for `name` now, or 0.
  CacheId IdOf(const std::string& name) const;

  // Carries out an agreement or an eviction of the log.
  void Insert(CacheId id, std::string name,
              std::shared_ptr<const Signature> signature);
  void Erase(CacheId id);

  // The leader marks use, and evicts those unused for longest.
  void Touch(CacheId id);
  std::vector<CacheId> Oldest(size_t count) const;

  size_t size() const { return by_id_.size(); }

 private:
  struct Slot {
    Remembered remembered;
    std::list<CacheId>::iterator position;
  };
  std::unordered_map<CacheId, Slot> by_id_;
  std::unordered_map<std::string, CacheId> by_name_;
  std::list<CacheId> by_use_;  // least recently used first
};

// Equal in everything that must not change from step to step.
[[nodiscard]] bool SameButFirstDims(const Signature& a, const Signature& b);

// Dimension 0 of each shape.
[[nodiscard]] Shape FirstDims(const Signature& signature);

}  // namespace hvd

#endif  // HVD_CORE_RESPONSE_CACHE_H_
