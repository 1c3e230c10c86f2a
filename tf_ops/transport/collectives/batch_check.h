// SPDX-License-Identifier: Apache-2.0
// CheckBatch: checks that every rank makes of a batch before it starts it.
#ifndef HVD_TRANSPORT_COLLECTIVES_BATCH_CHECK_H_
#define HVD_TRANSPORT_COLLECTIVES_BATCH_CHECK_H_

#include "core/status.h"
#include "core/transport.h"

namespace hvd {

// Ok when the batch makes sense for `rank` of `size`. It looks only at what is
// the same on every rank, so all ranks refuse the same batches.
Status CheckBatch(const Batch& batch, int rank, int size);

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_BATCH_CHECK_H_
