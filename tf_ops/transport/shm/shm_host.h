// SPDX-License-Identifier: Apache-2.0
// ShmHost: the layout of the memory that the ranks of a host share.
#ifndef HVD_TRANSPORT_SHM_SHM_HOST_H_
#define HVD_TRANSPORT_SHM_SHM_HOST_H_

#include <cstddef>
#include <memory>

#include "transport/shm/shm_doorbell.h"
#include "transport/shm/shm_ring.h"
#include "transport/shm/shm_segment.h"

namespace hvd {

// Every rank has a doorbell and an arena. Every pair has two rings in each
// direction: one for messages of the control plane, one for moves. Ranks are
// local ranks. The object is constant. Each process has its own. Ranks that are
// threads of one process share one.
class ShmHost {
 public:
  // The size of the segment, which must be filled with zeros.
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

#endif  // HVD_TRANSPORT_SHM_SHM_HOST_H_
