// SPDX-License-Identifier: Apache-2.0
// How large the outputs of a batch are.
#ifndef HVD_TRANSPORT_DEVICE_OUTPUTS_H_
#define HVD_TRANSPORT_DEVICE_OUTPUTS_H_

#include <cstdint>

#include "core/rows.h"
#include "core/transport.h"
#include "core/types.h"

namespace hvd {

// Whether nobody knows it before the batch runs.
inline bool Varies(Verb verb) {
  return verb == Verb::kAllgather || verb == Verb::kAlltoall ||
         verb == Verb::kSparseAllreduce;
}

// Elements of a segment's output. Not for verbs where it varies.
inline int64_t OutputCount(const Batch& batch, const Segment& segment, int rank,
                           int size) {
  if (batch.verb != Verb::kReducescatter) return segment.count;
  return ScatteredRows(segment.rows, rank, size).size() * segment.row_count;
}

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_OUTPUTS_H_
