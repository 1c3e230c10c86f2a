// SPDX-License-Identifier: Apache-2.0
// Which agreed tensors travel as one batch.
#ifndef HVD_CORE_FUSION_H_
#define HVD_CORE_FUSION_H_

#include <cstdint>
#include <vector>

#include "core/request.h"

namespace hvd {

// Whether tensors of these signatures may be in one batch: same verb, memory
// and, for an allreduce, dtype, wire dtype, op and scales; for a broadcast the
// same root.
[[nodiscard]] bool MoveAlike(const Signature& a, const Signature& b);

struct FusionCandidate {
  const Signature* signature = nullptr;
  int64_t bytes = 0;  // over all ranks, for an allgather
};

// The batches, as positions in `candidates`, in the order of their first
// tensor. Tensors of a batch move alike. A batch holds at most `fusion_bytes`,
// or one tensor. Pure: no clock, no rank, no environment.
[[nodiscard]] std::vector<std::vector<size_t>> PlanFusion(
    const std::vector<FusionCandidate>& candidates, int64_t fusion_bytes);

}  // namespace hvd

#endif  // HVD_CORE_FUSION_H_
