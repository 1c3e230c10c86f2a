// SPDX-License-Identifier: Apache-2.0
// CheckBatch: checks that every rank makes of a batch before it starts it.
#ifndef HVD_TRANSPORT_COLLECTIVES_BATCH_CHECK_H_
#define HVD_TRANSPORT_COLLECTIVES_BATCH_CHECK_H_

#include "core/rows.h"
#include "core/status.h"
#include "core/transport.h"

namespace hvd {

// Ok when the batch makes sense for `rank` of `size`. It looks only at what is
// the same on every rank, so all ranks refuse the same batches.
Status CheckBatch(const Batch& batch, int rank, int size);

// Ok when the rows of all ranks can be united. `rows` of [segment][rank] are
// those of a sparse allreduce, at least 0.
Status CheckUnions(const Batch& batch, const RankCounts& rows);

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_BATCH_CHECK_H_
