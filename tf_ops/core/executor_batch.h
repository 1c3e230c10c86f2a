// SPDX-License-Identifier: Apache-2.0
// From agreed entries to the batch that a transport gets.
#ifndef HVD_CORE_EXECUTOR_BATCH_H_
#define HVD_CORE_EXECUTOR_BATCH_H_

#include <cstddef>
#include <deque>
#include <vector>

#include "core/ready_batch.h"
#include "core/transport.h"

namespace hvd {

// What must live until the wire is done with a batch.
struct ExecutorWork {
  ReadyBatch ready;
  // Outputs of entries that nobody waits for any more.
  std::deque<std::vector<std::byte>> scratch;
};

// The batch of `work`'s entries. It points into `work`. What fails on this rank
// alone is in the batch. `check_finite`: see Batch.
[[nodiscard]] Batch MakeBatch(ExecutorWork* work, bool check_finite);

}  // namespace hvd

#endif  // HVD_CORE_EXECUTOR_BATCH_H_
