// SPDX-License-Identifier: Apache-2.0
// Range: the elements of a chunk, or of a rank's shard of it.
#ifndef HVD_TRANSPORT_COLLECTIVES_RANGE_H_
#define HVD_TRANSPORT_COLLECTIVES_RANGE_H_

#include <algorithm>
#include <cstdint>

#include "transport/collectives/batch_work.h"

namespace hvd {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
};

// The elements of chunk `index`, in a batch in which all ranks have equally
// many.
inline Range ChunkRange(const BatchWork& work, int64_t index) {
  const int64_t total = work.element_count(work.rank());
  const int64_t begin = std::min(index * work.chunk_elements(), total);
  return {begin, std::min(begin + work.chunk_elements(), total)};
}

// Shard `index` of `count` shards of about the same size. Parts begin at
// multiples of kAlignedElements from the whole's begin. With few elements the
// last shards are empty.
inline Range ShardOf(const Range& whole, int index, int count) {
  const int64_t share = (whole.size() + count - 1) / count;
  const int64_t step =
      (share + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
  const int64_t begin = std::min(index * step, whole.size());
  const int64_t end = std::min(begin + step, whole.size());
  return {whole.begin + begin, whole.begin + end};
}

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_RANGE_H_
