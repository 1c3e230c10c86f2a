// SPDX-License-Identifier: Apache-2.0
// AllreducePhase: what the chunks of an allreduce share.
#ifndef HVD_TRANSPORT_COLLECTIVES_ALLREDUCE_PHASE_H_
#define HVD_TRANSPORT_COLLECTIVES_ALLREDUCE_PHASE_H_

#include <memory>

#include "transport/collectives/chunk.h"
#include "transport/collectives/phase.h"
#include "transport/collectives/range.h"

namespace hvd {

class AllreducePhase final : public Phase {
 public:
  AllreducePhase(BatchWork* work, const Operands& operands, Next next);

  int64_t chunk_count() const override { return plan_.chunk_count; }
  std::unique_ptr<Chunk> NewChunk(int64_t index) override;

  const SegmentMap& map() const { return map_; }
  Range RangeOf(int64_t index) const {
    return ChunkRange(plan_, map_.total(), index);
  }
  int64_t BytesOf(const Range& range) const {
    return range.size() * element_bytes();
  }

 private:
  const SegmentMap map_;
  const ChunkPlan plan_;
};

// A chunk where hosts have several ranks; see allreduce_two_level.cc.
std::unique_ptr<Chunk> NewTwoLevelAllreduceChunk(AllreducePhase* phase,
                                                 int64_t index);

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_ALLREDUCE_PHASE_H_
