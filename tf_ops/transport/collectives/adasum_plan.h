// SPDX-License-Identifier: Apache-2.0
// AdasumPlan: which rank combines which elements of a batch, and in which
// round.
//
// A tensor is cut into shards. How many, and where, depends on its count and on
// the number of ranks alone. Dot products are added up in the order of the
// shards. So they have the same bits whether the tensor is fused or not.
#ifndef HVD_TRANSPORT_COLLECTIVES_ADASUM_PLAN_H_
#define HVD_TRANSPORT_COLLECTIVES_ADASUM_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/collectives/range.h"
#include "transport/collectives/segment_map.h"

namespace hvd {

// It is the same on every rank.
class AdasumPlan {
 public:
  // `round_elements` is what a round should have at most. It has whole tensors,
  // and at least one.
  AdasumPlan(std::vector<int64_t> counts, int ranks, int64_t round_elements);

  int ranks() const { return ranks_; }
  size_t segment_count() const { return counts_.size(); }
  // Which segments the round has. There is at least one round.
  size_t round_count() const { return round_ends_.size(); }
  size_t RoundBegin(size_t round) const {
    return round == 0 ? 0 : round_ends_[round - 1];
  }
  size_t RoundEnd(size_t round) const { return round_ends_[round]; }

  int ShardCount(size_t segment) const;
  // The rank that owns shard `shard`. It owns no other shard of the tensor.
  int OwnerOf(size_t segment, int shard) const;
  // What the rank owns of the tensor. Empty: nothing.
  Range Owned(size_t segment, int rank) const;
  // How many of the round's tensors the rank owns something of.
  int64_t TensorsOwned(size_t round, int rank) const;
  // All that the rank owns in the round, as elements of the tensors.
  SegmentMap OwnedMap(size_t round, int rank) const;

 private:
  int64_t ShardElements(size_t segment) const;

  const std::vector<int64_t> counts_;
  const int ranks_;
  std::vector<int> first_owners_;  // by segment
  std::vector<size_t> round_ends_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_ADASUM_PLAN_H_
