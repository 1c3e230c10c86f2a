// SPDX-License-Identifier: Apache-2.0
// From agreed entries to the batch that a transport gets.
#ifndef HVD_CORE_EXECUTOR_BATCH_H_
#define HVD_CORE_EXECUTOR_BATCH_H_

#include "core/ready_batch.h"
#include "core/transport.h"

namespace hvd {

// The batch of `ready`'s entries. It points into `ready`. What fails on this
// rank alone is in the batch. Entries that nobody waits for any more have no
// outputs. `check_finite`: see Batch.
[[nodiscard]] Batch MakeBatch(const ReadyBatch& ready, bool check_finite);

}  // namespace hvd

#endif  // HVD_CORE_EXECUTOR_BATCH_H_
