// SPDX-License-Identifier: Apache-2.0
// Takes over the outputs that a batch allocates late.
#include "transport/collectives/batch_work.h"

#include <string>
#include <vector>

namespace hvd {

void BatchWork::Allocate(const RankCounts& rows) {
  if (is_detached() || !batch_.allocate) return;
  std::vector<void*> outputs;
  Status status = batch_.allocate(rows, &outputs);
  const size_t buffers = batch_.verb == Verb::kSparseAllreduce ? 2 : 1;
  if (status.ok() && outputs.size() != batch_.segments.size() * buffers) {
    status = Internal("a batch of " + std::to_string(batch_.segments.size()) +
                      " segments was given " + std::to_string(outputs.size()) +
                      " outputs.");
  }
  if (!status.ok()) return FailHere(status);
  for (size_t i = 0; i < batch_.segments.size(); ++i) {
    batch_.segments[i].out = outputs[i * buffers];
    if (buffers > 1) batch_.segments[i].out_ids = outputs[i * buffers + 1];
  }
}

}  // namespace hvd
