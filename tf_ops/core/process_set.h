// SPDX-License-Identifier: Apache-2.0
// ProcessSet: which ranks of the job work together.
#ifndef HVD_CORE_PROCESS_SET_H_
#define HVD_CORE_PROCESS_SET_H_

#include <vector>

namespace hvd {

// A group of ranks that run collectives among themselves. Set 0 is all ranks.
struct ProcessSet {
  std::vector<int> ranks;  // of the job, ascending
  int rank = -1;           // this rank's place in them; -1: no member
};

}  // namespace hvd

#endif  // HVD_CORE_PROCESS_SET_H_
