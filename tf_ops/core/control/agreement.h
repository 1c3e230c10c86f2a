// SPDX-License-Identifier: Apache-2.0
// Whether the ranks of a set ask for the same collective under one name.
//
// Pure: the same submissions give the same answer and text everywhere.
#ifndef HVD_CORE_CONTROL_AGREEMENT_H_
#define HVD_CORE_CONTROL_AGREEMENT_H_

#include <string>
#include <vector>

#include "core/request.h"
#include "core/status.h"

namespace hvd {

// One rank's side of a key.
struct RankRequest {
  int job_rank = 0;                      // for messages
  const Signature* signature = nullptr;  // null: the rank has joined
  const Status* error = nullptr;         // null: none
};

// Ok when the ranks agree. Else a FailedPrecondition that names the tensor,
// every rank's value and what to do. A rank's own error keeps its code.
[[nodiscard]] Status CheckAgreement(const std::string& name,
                                    const std::vector<RankRequest>& ranks);

// Such as "rank 1" or "ranks 0-2, 5". The ranks must be ascending.
[[nodiscard]] std::string NameRanks(const std::vector<int>& ranks);

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_AGREEMENT_H_
