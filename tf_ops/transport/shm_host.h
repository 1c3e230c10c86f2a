// SPDX-License-Identifier: Apache-2.0
// ShmHost: what lies where in the memory that the ranks of a host share.
#ifndef HVD_TRANSPORT_SHM_HOST_H_
#define HVD_TRANSPORT_SHM_HOST_H_

#include <cstddef>
#include <memory>

#include "transport/shm_doorbell.h"
#include "transport/shm_ring.h"
#include "transport/shm_segment.h"

namespace hvd {

// For every rank a doorbell and an arena, for every pair two rings each way:
// one for messages of the control plane, one for moves. Ranks are local ones.
// Constant; each process has its own, ranks that are threads share one.
class ShmHost {
 public:
  // Of the segment, which must be one of zeros.
  static size_t BytesFor(int ranks, size_t arena_bytes);

  ShmHost(std::shared_ptr<ShmSegment> segment, int ranks, size_t arena_bytes);

  int ranks() const { return ranks_; }
  DoorbellWord* doorbell(int rank) const;
  ShmRing messages(int from, int to) const;
  ShmRing moves(int from, int to) const;
  std::byte* arena(int rank) const;
  size_t arena_bytes() const { return arena_bytes_; }
  // Keeps the memory.
  const std::shared_ptr<ShmSegment>& segment() const { return segment_; }

 private:
  std::byte* PairAt(int from, int to) const;

  const std::shared_ptr<ShmSegment> segment_;
  const int ranks_;
  const size_t arena_bytes_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_SHM_HOST_H_
