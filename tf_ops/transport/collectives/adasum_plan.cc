// SPDX-License-Identifier: Apache-2.0
// Shards of tensors, dealt out to the ranks in turn.
#include "transport/collectives/adasum_plan.h"

#include <algorithm>
#include <utility>

namespace hvd {
namespace {

// A tensor has no smaller shards than this, but for its last. Each shard costs
// some numbers of each rank, so small tensors have one or few.
constexpr int64_t kSmallestShard = 1024;

}  // namespace

AdasumPlan::AdasumPlan(std::vector<int64_t> counts, int ranks,
                       int64_t round_elements)
    : counts_(std::move(counts)), ranks_(ranks) {
  int next_owner = 0;
  int64_t in_round = 0;
  for (size_t segment = 0; segment < counts_.size(); ++segment) {
    if (in_round > 0 && in_round + counts_[segment] > round_elements) {
      round_ends_.push_back(segment);
      in_round = 0;
    }
    in_round += counts_[segment];
    first_owners_.push_back(next_owner);
    next_owner = (next_owner + ShardCount(segment)) % ranks_;
  }
  round_ends_.push_back(counts_.size());
}

int64_t AdasumPlan::ShardElements(size_t segment) const {
  const int64_t share = (counts_[segment] + ranks_ - 1) / ranks_;
  return RoundUp(std::max(share, int64_t{1}), kSmallestShard);
}

int AdasumPlan::ShardCount(size_t segment) const {
  const int64_t elements = ShardElements(segment);
  return static_cast<int>((counts_[segment] + elements - 1) / elements);
}

int AdasumPlan::OwnerOf(size_t segment, int shard) const {
  return (first_owners_[segment] + shard) % ranks_;
}

Range AdasumPlan::Owned(size_t segment, int rank) const {
  const int shard = (rank - first_owners_[segment] + ranks_) % ranks_;
  const int64_t elements = ShardElements(segment);
  const int64_t begin = std::min(shard * elements, counts_[segment]);
  return {begin, std::min(begin + elements, counts_[segment])};
}

int64_t AdasumPlan::TensorsOwned(size_t round, int rank) const {
  int64_t tensors = 0;
  for (size_t i = RoundBegin(round); i < RoundEnd(round); ++i) {
    tensors += !Owned(i, rank).empty();
  }
  return tensors;
}

SegmentMap AdasumPlan::OwnedMap(size_t round, int rank) const {
  std::vector<int64_t> counts(counts_.size(), 0), firsts(counts_.size(), 0);
  for (size_t i = RoundBegin(round); i < RoundEnd(round); ++i) {
    const Range owned = Owned(i, rank);
    counts[i] = owned.size();
    firsts[i] = owned.begin;
  }
  return SegmentMap(counts, std::move(firsts));
}

}  // namespace hvd
