// SPDX-License-Identifier: Apache-2.0
// ReducescatterPhase: what the chunks of a reducescatter share.
#ifndef HVD_TRANSPORT_COLLECTIVES_REDUCESCATTER_PHASE_H_
#define HVD_TRANSPORT_COLLECTIVES_REDUCESCATTER_PHASE_H_

#include <memory>
#include <vector>

#include "transport/collectives/chunk.h"
#include "transport/collectives/phase.h"
#include "transport/collectives/range.h"

namespace hvd {

// Every rank owns some rows of each segment. Chunk k has chunk k of every
// owner's elements.
class ReducescatterPhase final : public Phase {
 public:
  ReducescatterPhase(BatchWork* work, const Operands& operands);

  int64_t chunk_count() const override { return plan_.chunk_count; }
  std::unique_ptr<Chunk> NewChunk(int64_t index) override;

  // An owner's elements in the inputs, and this rank's in the outputs.
  const SegmentMap& in(int owner) const {
    return ins_[static_cast<size_t>(owner)];
  }
  const SegmentMap& out() const { return out_; }
  // In elements of the owner.
  Range RangeOf(int owner, int64_t index) const {
    return ChunkRange(plan_, in(owner).total(), index);
  }
  // Without data the first chunk still goes, because it has its sender's state.
  bool Exists(int owner, int64_t index) const {
    return index == 0 || !RangeOf(owner, index).empty();
  }
  int64_t BytesOf(const Range& range) const {
    return range.size() * element_bytes();
  }

 private:
  std::vector<SegmentMap> ins_;  // by owner
  SegmentMap out_;
  ChunkPlan plan_;
};

// A chunk where hosts have several ranks; see reducescatter_two_level.cc.
std::unique_ptr<Chunk> NewTwoLevelReducescatterChunk(ReducescatterPhase* phase,
                                                     int64_t index);

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_REDUCESCATTER_PHASE_H_
