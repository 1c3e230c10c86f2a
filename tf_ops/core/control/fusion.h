// SPDX-License-Identifier: Apache-2.0
// Decides which agreed tensors travel as one batch.
#ifndef HVD_CORE_CONTROL_FUSION_H_
#define HVD_CORE_CONTROL_FUSION_H_

#include <cstdint>
#include <vector>

#include "core/request.h"

namespace hvd {

// Whether tensors of these signatures may be in one batch. They need the same
// verb and memory, and the verb's rules must allow it.
[[nodiscard]] bool MoveAlike(const Signature& a, const Signature& b);

struct FusionCandidate {
  const Signature* signature = nullptr;
  int64_t bytes = 0;  // of an allgather: of all ranks
  // Ranks that take part without the tensor. Null: none. Tensors of different
  // ones are not in one batch.
  const std::vector<int>* absent = nullptr;
};

// The batches, as positions in `candidates`, in the order of their first
// tensors. MoveAlike holds for the tensors of a batch. A batch has one tensor,
// or at most `fusion_bytes`. Pure: reads no clock, rank or environment.
[[nodiscard]] std::vector<std::vector<size_t>> PlanFusion(
    const std::vector<FusionCandidate>& candidates, int64_t fusion_bytes);

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_FUSION_H_
