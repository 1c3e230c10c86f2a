// SPDX-License-Identifier: Apache-2.0
// SmallBatch: batches of host memory by which a lane's ranks tell each other
// numbers.
#ifndef HVD_TRANSPORT_DEVICE_SMALL_BATCH_H_
#define HVD_TRANSPORT_DEVICE_SMALL_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/transport.h"
#include "core/types.h"

namespace hvd {

// A batch of one segment, which has `count` elements of this rank.
inline Batch SmallBatch(Verb verb, DataType dtype, const void* in, void* out,
                        size_t count) {
  Batch batch;
  batch.verb = verb;
  batch.dtype = batch.wire_dtype = dtype;
  Segment& segment = batch.segments.emplace_back();
  segment.in = in;
  segment.out = out;
  segment.count = segment.rows = static_cast<int64_t>(count);
  return batch;
}

// The largest of the ranks' values, in place.
inline Batch LargestOf(DataType dtype, void* value) {
  Batch batch = SmallBatch(Verb::kAllreduce, dtype, value, value, 1);
  batch.reduce_op = ReduceOp::kMax;
  return batch;
}

// What the framework's stream has come to: Segment::ready of a tensor with
// elements, if there is one. Null: of none.
inline std::shared_ptr<const void> ReadyOf(const Batch& batch) {
  std::shared_ptr<const void> of_none;
  for (const Segment& segment : batch.segments) {
    if (segment.ready == nullptr) continue;
    if (segment.count > 0) return segment.ready;
    of_none = segment.ready;
  }
  return of_none;
}

// The tensor that errors of a batch name. Null: it has none.
inline const std::string* NameOf(const Batch& batch) {
  return batch.segments.empty() ? nullptr : batch.segments[0].name;
}

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_SMALL_BATCH_H_
