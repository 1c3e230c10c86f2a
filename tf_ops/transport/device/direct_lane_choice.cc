// SPDX-License-Identifier: Apache-2.0
// The part of DirectLane that says which batches GPUs reduce among themselves.
#include "transport/device/communicator_calls.h"
#include "transport/device/direct_lane.h"
#include "transport/device/gpu_fusion.h"

namespace hvd {
namespace {

bool Reduces(Verb verb) {
  return verb == Verb::kAllreduce || verb == Verb::kReducescatter;
}

bool IsMoved(Verb verb) {
  return verb == Verb::kBroadcast || verb == Verb::kAllgather ||
         verb == Verb::kAlltoall;
}

// Integers are cut off when they have been scaled before the sum, and again
// behind it. One factor would not do that.
bool IsScaledTwice(const Batch& batch) {
  return !IsFloating(batch.dtype) &&
         (batch.prescale != 1.0 || batch.postscale != 1.0);
}

bool IsSum(ReduceOp op) {
  return op == ReduceOp::kSum || op == ReduceOp::kAverage;
}

// NCCL leaves out NaN, which the hosts hand on.
bool LosesNan(const Batch& batch) {
  return IsFloating(batch.dtype) && (batch.reduce_op == ReduceOp::kMin ||
                                     batch.reduce_op == ReduceOp::kMax);
}

}  // namespace

// Everything here is the same on all ranks.
bool DirectLane::IsForGpus(const Batch& batch) const {
  if (!is_direct() || batch.has_absent) return false;
  if (!batch.partners.empty()) return false;
  if (Reduces(batch.verb) && LosesNan(batch)) return false;
  if (decision_.is_by_host()) {
    return batch.verb == Verb::kAllreduce && IsFloating(batch.dtype) &&
           FusionBytes(batch) > 0 &&
           communicators_->Takes(batch.wire_dtype, batch.reduce_op, 1.0);
  }
  if (IsMoved(batch.verb)) return true;
  if (batch.verb == Verb::kSparseAllreduce) {
    return decision_.all_have_kernels() && IsFloating(batch.dtype);
  }
  if (!Reduces(batch.verb) || IsScaledTwice(batch)) return false;
  // Kernels of ours scale and convert floating elements.
  if (decision_.all_have_kernels() && IsFused(batch, size()) &&
      IsFloating(batch.dtype)) {
    return communicators_->Takes(batch.wire_dtype, batch.reduce_op, 1.0);
  }
  // Two factors are one for a sum alone.
  if (!IsSum(batch.reduce_op) && IsScaled(batch, size())) return false;
  return batch.wire_dtype == batch.dtype &&
         communicators_->Takes(batch.dtype, batch.reduce_op,
                               ScaleOf(batch, size()));
}

}  // namespace hvd
