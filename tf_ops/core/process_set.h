// SPDX-License-Identifier: Apache-2.0
// ProcessSet: which ranks of the job work together.
#ifndef HVD_CORE_PROCESS_SET_H_
#define HVD_CORE_PROCESS_SET_H_

#include <memory>
#include <vector>

namespace hvd {

// Messages on a wire have the slot of their process set, in a few bits.
inline constexpr int kProcessSetSlots = 64;

// A group of ranks that run collectives among themselves. Set 0 is all ranks.
struct ProcessSet {
  std::vector<int> ranks;  // of the job, ascending
  int rank = -1;           // this rank's place in them; -1: no member
  // What users call it by. The id of a removed set is given to a new one.
  int id = 0;
  // The number of the set within the life of the job. It is never used twice.
  // For the sets that the job started with, it is the id.
  int serial = 0;
};
using ProcessSetPtr = std::shared_ptr<const ProcessSet>;

}  // namespace hvd

#endif  // HVD_CORE_PROCESS_SET_H_
