// SPDX-License-Identifier: Apache-2.0
// Finds who works on a batch, and takes over the outputs that it allocates
// late.
#include "transport/collectives/batch_work.h"

#include <algorithm>
#include <string>
#include <vector>

namespace hvd {

BatchWork::BatchWork(Batch batch, uint64_t sequence, int64_t chunk_bytes,
                     Wire* wire, WorkThreads* threads)
    : batch_(std::move(batch)),
      sequence_(sequence),
      chunk_bytes_(chunk_bytes),
      wire_(wire),
      threads_(threads),
      rank_(wire->rank()) {
  const std::vector<int>& partners = batch_.partners;
  if (partners.empty()) return;
  rank_ = static_cast<int>(
      std::lower_bound(partners.begin(), partners.end(), wire->rank()) -
      partners.begin());
  // Partners are one rank of each host, mostly.
  partner_hosts_ = EachAlone(static_cast<int>(partners.size()));
}

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
