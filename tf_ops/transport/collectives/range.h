// SPDX-License-Identifier: Apache-2.0
// Range: the elements of a chunk, or of a rank's shard of it.
#ifndef HVD_TRANSPORT_COLLECTIVES_RANGE_H_
#define HVD_TRANSPORT_COLLECTIVES_RANGE_H_

#include <algorithm>
#include <cstdint>

#include "transport/collectives/packer.h"
#include "transport/collectives/phase.h"

namespace hvd {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
};

// The elements of chunk `index`, out of `total`. Empty behind the end.
inline Range ChunkRange(const ChunkPlan& plan, int64_t total, int64_t index) {
  const int64_t begin = std::min(index * plan.chunk_elements, total);
  return {begin, std::min(begin + plan.chunk_elements, total)};
}

// Shard `index` of `count` shards of about the same size. Shards begin at
// multiples of kAlignedElements from the whole's begin. With few elements the
// last shards are empty.
inline Range ShardOf(const Range& whole, int index, int count) {
  const int64_t share = (whole.size() + count - 1) / count;
  const int64_t step = RoundUp(share, kAlignedElements);
  const int64_t begin = std::min(index * step, whole.size());
  const int64_t end = std::min(begin + step, whole.size());
  return {whole.begin + begin, whole.begin + end};
}

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_RANGE_H_
