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
  // The number that a rank submitted it under. 0: none.
  SignatureNumber signature_number = 0;
  // As the leader's rank has it. First dimensions that may vary may be another
  // rank's.
  std::shared_ptr<const Signature> signature;
  std::vector<std::vector<int64_t>> first_dims;
  // Ranks that have joined, and take part without it. Null: none. Shared by
  // tensors that were agreed one after another.
  std::shared_ptr<const std::vector<int>> absent;
  int64_t bytes = 0;
  uint64_t agreement = 0;  // its number; the first one has 1
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_AGREED_H_
