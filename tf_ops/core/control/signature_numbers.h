// SPDX-License-Identifier: Apache-2.0
// SignatureNumbers: gives out the numbers of agreed signatures, and takes them
// back.
#ifndef HVD_CORE_CONTROL_SIGNATURE_NUMBERS_H_
#define HVD_CORE_CONTROL_SIGNATURE_NUMBERS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/control/agreed.h"
#include "core/control/message.h"
#include "core/control/response_cache.h"

namespace hvd {

// Has a ResponseCache of its own. It changes when a record is made, so it is as
// every member's will be when that has applied the record.
//
// A number that was evicted or replaced is retired. A member may still use it
// in a report that it sent before it saw that record.
//
// Owner: the leader of a set. Background thread only.
class SignatureNumbers {
 public:
  // `most`: how many numbers the members remember. 0: none are given.
  explicit SignatureNumbers(int64_t most) : most_(most) {}

  // What a member may still mean by that number. Null: nothing.
  const ResponseCache::Remembered* Recall(SignatureNumber number) const;
  // The number that stands for the name now. 0: none.
  SignatureNumber NumberOf(const std::string& name) const {
    return cache_.NumberOf(name);
  }

  // The batch as log record `log_number`. Tensors that have no number yet get
  // one.
  AgreedBatch MakeBatch(std::vector<Agreed> tensors, uint64_t log_number);

  // Whether there are more numbers than members remember. Then an eviction is
  // due, as log record `log_number`. It takes back those unused for longest.
  bool has_too_many() const {
    return static_cast<int64_t>(cache_.size()) > most_;
  }
  Eviction Evict(uint64_t log_number);

  size_t retired_count() const { return retired_.size(); }
  // Every member has applied the log up to that record.
  void ForgetRetired(uint64_t log_number);

 private:
  // The number that every member knows the tensor by. 0: none.
  SignatureNumber NumberOf(const Agreed& agreed) const;
  void Retire(SignatureNumber number, uint64_t log_number);

  const int64_t most_;
  ResponseCache cache_;
  SignatureNumber next_number_ = 1;
  std::map<SignatureNumber, ResponseCache::Remembered> retired_;
  // With the record that evicted or replaced each, ascending.
  std::deque<std::pair<uint64_t, SignatureNumber>> retired_order_;
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_SIGNATURE_NUMBERS_H_
