// SPDX-License-Identifier: Apache-2.0
// StagingPieces: how a large batch is cut, so that copies of a GPU and the
// wire overlap.
#ifndef HVD_TRANSPORT_DEVICE_STAGING_PIECES_H_
#define HVD_TRANSPORT_DEVICE_STAGING_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/transport.h"

namespace hvd {

// Some elements of a segment.
struct SegmentPart {
  size_t segment = 0;
  int64_t begin = 0;
  int64_t count = 0;
};

// While one piece is copied another is on the wire. With four of them a quarter
// of a copy is exposed. Smaller pieces would cost more messages than they hide.
inline constexpr int64_t kMostPieces = 4;
inline constexpr int64_t kLeastPieceBytes = int64_t{4} << 20;

// The parts of each piece, in order. Each element is in one part. A piece has
// about `least_bytes` or more. A batch that is small, or that cannot be cut
// without other results or errors, is one piece. Every rank cuts in the same
// way.
[[nodiscard]] std::vector<std::vector<SegmentPart>> CutIntoPieces(
    const Batch& batch, int64_t least_bytes);

// The part of the batch's segment, whose tensors are in host memory.
[[nodiscard]] Segment PartOf(const Batch& batch, const SegmentPart& part);

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_STAGING_PIECES_H_
