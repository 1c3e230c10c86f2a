// SPDX-License-Identifier: Apache-2.0
// AdasumCall: tensors of one batch, with values that any rank can tell.
#ifndef HVD_TESTS_CORE_ADASUM_CALL_H_
#define HVD_TESTS_CORE_ADASUM_CALL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/transport.h"
#include "expected_adasum.h"

namespace hvd {

// How the ranks' vectors lie to each other.
enum class Likeness { kSome, kEqual, kOpposite, kOrthogonal, kSomeZero };

class AdasumCall {
 public:
  // `head` has all but the segments. `first_tensor` is the number of the first
  // one: it decides its values.
  AdasumCall(const Transport& transport, Batch head,
             std::vector<int64_t> counts, Likeness likeness = Likeness::kSome,
             int first_tensor = 0);

  void Start(Transport* transport);
  // Starts it, and drives the transport until all have finished it.
  void Run(Transport* transport);

  // Every tensor is near what its vectors make, and has the same bits on all
  // ranks of the transport.
  void ExpectNumbers(Transport* transport) const;
  Vector Expected(size_t tensor) const;
  double Result(size_t tensor, int64_t at) const;
  // Value k of what the rank puts in.
  double Input(size_t tensor, int rank, int64_t k) const;
  void Put(size_t tensor, int64_t k, double value);

  // What the caller may do once it was told: the memory is its own.
  void TakeMemory();
  bool memory_untouched() const;

  Batch& batch() { return batch_; }
  BatchId id() const { return id_; }
  bool done() const { return done_; }
  const Status& status() const { return status_; }
  const std::vector<std::vector<char>>& out() const { return out_; }

 private:
  void ExpectSameBits(Transport* transport) const;

  const int rank_, size_;
  const std::vector<int64_t> counts_;
  const Likeness likeness_;
  const int first_tensor_;
  Batch batch_;
  std::vector<std::string> names_;
  std::vector<std::vector<char>> in_, out_;
  BatchId id_ = 0;
  bool done_ = false;
  Status status_ = Internal("not done");
};

}  // namespace hvd

#endif  // HVD_TESTS_CORE_ADASUM_CALL_H_
