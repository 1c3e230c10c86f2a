// SPDX-License-Identifier: Apache-2.0
// Agreed: a tensor that all ranks have submitted alike, until it is in the log.
#ifndef HVD_CORE_CONTROL_AGREED_H_
#define HVD_CORE_CONTROL_AGREED_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "core/control/message.h"
#include "core/request.h"

namespace hvd {

// The leader makes it, a BatchPlanner keeps it, and SignatureNumbers turns it
// into an AgreedTensor of the log.
struct Agreed {
  Key key;
  CacheId id = 0;  // the number that a rank submitted it under; 0: none
  // As the leader's rank has it. First dimensions that may vary may be another
  // rank's.
  std::shared_ptr<const Signature> signature;
  std::vector<std::vector<int64_t>> first_dims;
  // Ranks that have joined, and take part without it. Null: none. Shared by
  // tensors that were agreed one after another.
  std::shared_ptr<const std::vector<int>> absent;
  int64_t bytes = 0;
  uint64_t number = 0;  // the first agreement has 1
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_AGREED_H_
