// SPDX-License-Identifier: Apache-2.0
// Whether what a leader's log agrees on can be carried out here.
#ifndef HVD_CORE_RECORD_CHECK_H_
#define HVD_CORE_RECORD_CHECK_H_

#include "core/ready_batch.h"
#include "core/status.h"

namespace hvd {

// Not Ok, and then a bug or another build on the leader: no tensor, tensors
// that do not move alike, or first dimensions that are not one for each rank,
// negative, too large, or not this rank's own. What passes may size buffers.
// Pure.
[[nodiscard]] Status CheckBatch(const ReadyBatch& batch, int rank, int size);

}  // namespace hvd

#endif  // HVD_CORE_RECORD_CHECK_H_
