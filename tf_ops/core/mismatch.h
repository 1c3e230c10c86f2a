// SPDX-License-Identifier: Apache-2.0
// What people are told when all ranks wait, each for names that others lack.
#ifndef HVD_CORE_MISMATCH_H_
#define HVD_CORE_MISMATCH_H_

#include <string>
#include <vector>

#include "core/request.h"

namespace hvd {

// A tensor that some ranks have asked for and others have not.
struct WaitedFor {
  std::string name;
  const Signature* signature = nullptr;  // as one of the ranks asked for it
  std::vector<int> ranks;                // of the job, ascending
};

// Names every rank's tensors and the pairs that are likely one tensor under
// two names: asked for alike, and by no rank both. `ranks` are all of the set,
// of the job, ascending; each waits for something. Pure.
[[nodiscard]] std::string MismatchText(std::vector<WaitedFor> tensors,
                                       const std::vector<int>& ranks,
                                       double silent_s);

}  // namespace hvd

#endif  // HVD_CORE_MISMATCH_H_
