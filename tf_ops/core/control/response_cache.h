// SPDX-License-Identifier: Apache-2.0
// ResponseCache: the signatures that a set has agreed on, by small numbers.
#ifndef HVD_CORE_CONTROL_RESPONSE_CACHE_H_
#define HVD_CORE_CONTROL_RESPONSE_CACHE_H_

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/control/message.h"
#include "core/request.h"

namespace hvd {

// Each rank has one for each set. Only log records change it, so the caches of
// all ranks are equal at the same record. Signatures are the rank's own: those
// of an allgather differ in their first dimensions. The leader alone chooses
// numbers and evictions. No number is used twice. Background thread only.
class ResponseCache {
 public:
  struct Remembered {
    Key key;  // of the name, outside loops
    std::shared_ptr<const Signature> signature;

    // The key of the name in an iteration. A key in a loop is made in `memory`.
    const Key& KeyOf(uint64_t instance, Key* memory) const;
  };

  // The number under which this rank may submit the request. 0: none. The first
  // dimensions of an allgather do not matter.
  SignatureNumber Find(const std::string& name,
                       const Signature& signature) const;

  // Null if the number is not known, or was evicted.
  const Remembered* Get(SignatureNumber number) const;

  // The number that stands for `name` now. 0: none.
  SignatureNumber NumberOf(const std::string& name) const;

  // Applies an agreement or an eviction of the log.
  void Insert(SignatureNumber number, std::string name,
              std::shared_ptr<const Signature> signature);
  void Erase(SignatureNumber number);

  // For the leader. Touch marks a use. Oldest returns the least recently used.
  void Touch(SignatureNumber number);
  std::vector<SignatureNumber> Oldest(size_t count) const;

  size_t size() const { return by_number_.size(); }

 private:
  struct Slot {
    Remembered remembered;
    std::list<SignatureNumber>::iterator position;
  };
  std::unordered_map<SignatureNumber, Slot> by_number_;
  std::unordered_map<std::string, SignatureNumber> by_name_;
  std::list<SignatureNumber> by_use_;  // least recently used first
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_RESPONSE_CACHE_H_
