// SPDX-License-Identifier: Apache-2.0
// Poison: why a rank sends no data. It travels instead of the data.
#ifndef HVD_TRANSPORT_COLLECTIVES_POISON_H_
#define HVD_TRANSPORT_COLLECTIVES_POISON_H_

#include "core/status.h"

namespace hvd {

struct Poison {
  StatusCode code = StatusCode::kOk;
  int origin = 0;  // rank within the set
  // The one with a value that is not finite. -1: there is none.
  int segment = -1;

  explicit operator bool() const { return code != StatusCode::kOk; }
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_POISON_H_
