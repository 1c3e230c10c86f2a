// SPDX-License-Identifier: Apache-2.0
// Refuses batches that make no sense, before they are on the wire.
#include "transport/collectives/batch_check.h"

#include <algorithm>
#include <string>
#include <vector>

namespace hvd {
namespace {

Status CheckCounts(const Batch& batch, int rank, int size) {
  if (batch.counts.size() != batch.segments.size()) {
    return Internal(
        "an allgather batch has " + std::to_string(batch.segments.size()) +
        " segments but counts of " + std::to_string(batch.counts.size()) + ".");
  }
  for (size_t i = 0; i < batch.counts.size(); ++i) {
    const std::vector<int64_t>& counts = batch.counts[i];
    const bool fits = counts.size() == static_cast<size_t>(size) &&
                      counts[rank] == batch.segments[i].count &&
                      std::all_of(counts.begin(), counts.end(),
                                  [](int64_t count) { return count >= 0; });
    if (!fits) {
      return Internal("the counts of segment " + std::to_string(i) +
                      " of an allgather batch make no sense.");
    }
  }
  return Status::Ok();
}

Status CheckReduction(const Batch& batch) {
  if (!IsValid(batch.reduce_op)) {
    return InvalidArgument("allreduce does not know the reduce op " +
                           std::to_string(static_cast<int>(batch.reduce_op)) +
                           ".");
  }
  if (batch.dtype == DataType::kBool) {
    return InvalidArgument(
        "allreduce is not defined for bool; cast the tensor to an integer.");
  }
  if (batch.wire_dtype != batch.dtype &&
      !(IsFloating(batch.dtype) && IsFloating(batch.wire_dtype))) {
    return InvalidArgument(std::string("allreduce cannot send ") +
                           Name(batch.dtype) + " as " + Name(batch.wire_dtype) +
                           "; only floating point is compressed.");
  }
  return Status::Ok();
}

}  // namespace

Status CheckBatch(const Batch& batch, int rank, int size) {
  for (const Segment& segment : batch.segments) {
    if (segment.count < 0) return Internal("a segment has a negative count.");
  }
  switch (batch.verb) {
    case Verb::kAllreduce:
      return CheckReduction(batch);
    case Verb::kAllgather:
      return CheckCounts(batch, rank, size);
    case Verb::kBroadcast:
      if (batch.root >= 0 && batch.root < size) return Status::Ok();
      return InvalidArgument("broadcast has the root " +
                             std::to_string(batch.root) +
                             "; the ranks of the process set are 0 to " +
                             std::to_string(size - 1) + ".");
  }
  return Internal("a batch has an unknown verb.");
}

}  // namespace hvd
