// SPDX-License-Identifier: Apache-2.0
// ReadyBatch: an agreed batch with this rank's entries. ReadyItem: the next
// thing to do on the wire.
#ifndef HVD_CORE_READY_BATCH_H_
#define HVD_CORE_READY_BATCH_H_

#include <cstdint>
#include <variant>
#include <vector>

#include "core/request.h"
#include "core/tuning.h"

namespace hvd {

// An entry on its way. If it is cancelled, its done has been called, and what
// the wire still delivers for it is dropped.
struct Outstanding {
  EntryPtr entry;
  bool cancelled = false;
};

// An AgreedBatch with this rank's entries.
struct ReadyBatch {
  uint64_t log_number = 0;
  std::vector<Outstanding> tensors;
  // An allgather has these, by tensor: dimension 0 of [shape][rank].
  std::vector<std::vector<std::vector<int64_t>>> first_dims;
  // See AgreedBatch. If this rank is absent, its entries have no memory, and
  // are cancelled.
  std::vector<int> absent;
  int64_t divisor = 0;
};

// Start this batch, or use these values for the batches behind it. Items are in
// the order of the log.
using ReadyItem = std::variant<ReadyBatch, Tuning>;

}  // namespace hvd

#endif  // HVD_CORE_READY_BATCH_H_
