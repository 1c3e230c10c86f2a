// SPDX-License-Identifier: Apache-2.0
// CheckBatch: what every rank asks of a batch before it starts it.
#ifndef HVD_TRANSPORT_BATCH_CHECK_H_
#define HVD_TRANSPORT_BATCH_CHECK_H_

#include "core/status.h"
#include "core/transport.h"

namespace hvd {

// Ok when the batch makes sense for `rank` of `size`. What it looks at is the
// same on every rank, so all refuse the same batches.
Status CheckBatch(const Batch& batch, int rank, int size);

}  // namespace hvd

#endif  // HVD_TRANSPORT_BATCH_CHECK_H_
