// SPDX-License-Identifier: Apache-2.0
// Checks what a peer says before memory or arithmetic depends on it.
#ifndef HVD_CORE_CONTROL_RECORD_CHECK_H_
#define HVD_CORE_CONTROL_RECORD_CHECK_H_

#include <cstdint>
#include <string>

#include "core/control/message.h"
#include "core/ready_batch.h"
#include "core/status.h"
#include "core/tuning.h"

namespace hvd {

// Whether some memory could have these tensors: no dimension is negative, and
// they have fewer bytes than any host. `first_dims`: dimension 0 of each shape.
// What passes for each rank can be added up over all ranks. Pure.
[[nodiscard]] bool FitsMemory(const Signature& signature,
                              const Shape& first_dims);
[[nodiscard]] bool FitsMemory(const Signature& signature);

// Not Ok if the batch has no tensor, or if MoveAlike does not hold for its
// tensors. Not Ok if this rank has refused one of them, or if a scalar or an
// absent rank cannot take part. Not Ok either if the first dimensions are not
// one for each rank, negative, too large, or not this rank's own. Then there is
// a bug, or the leader has another build.
//
// The dimensions of a batch that passes may be used as sizes of buffers. Pure.
[[nodiscard]] Status CheckBatch(const ReadyBatch& batch, int rank, int size);

// Not Ok if the absent ranks of a record are not some of the set's, in order,
// or if its divisor is not one.
[[nodiscard]] Status CheckAbsent(const AgreedBatch& batch, int size);

// Not Ok if a tensor of these shapes cannot be. For signatures of a tensor that
// this rank has not submitted.
[[nodiscard]] Status CheckShapes(const std::string& name,
                                 const Signature& signature);

// Not Ok if this rank has no memory for such chunks. No leader of this build
// asks for that. Pure.
[[nodiscard]] Status CheckTuning(const Tuning& tuning,
                                 int64_t most_chunk_bytes);

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_RECORD_CHECK_H_
