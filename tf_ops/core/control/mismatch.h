// SPDX-License-Identifier: Apache-2.0
// The message for people when every rank waits for names that others lack.
#ifndef HVD_CORE_CONTROL_MISMATCH_H_
#define HVD_CORE_CONTROL_MISMATCH_H_

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

// Names every rank's tensors, and the pairs that are likely one tensor under
// two names. Such a pair has equal signatures, and no rank asks for both.
// `ranks` are all ranks of the set, as ranks of the job, ascending. Each of
// them waits for something. Pure.
[[nodiscard]] std::string MismatchText(std::vector<WaitedFor> tensors,
                                       const std::vector<int>& ranks,
                                       double silent_s);

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_MISMATCH_H_
