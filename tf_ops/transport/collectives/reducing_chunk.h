// SPDX-License-Identifier: Apache-2.0
// ReducingChunk: a chunk that gathers the peers' blocks of one range.
#ifndef HVD_TRANSPORT_COLLECTIVES_REDUCING_CHUNK_H_
#define HVD_TRANSPORT_COLLECTIVES_REDUCING_CHUNK_H_

#include <vector>

#include "transport/collectives/chunk.h"
#include "transport/collectives/reducer.h"

namespace hvd {

// Gathers one block of each peer, and hands all of them on to be reduced.
class ReducingChunk : public Chunk {
 public:
  using Chunk::Chunk;

 protected:
  // Before Start: room for a block of `bytes` from each peer.
  void AddContributions(int64_t bytes);
  void ReceiveContributions();
  // True if anything arrived.
  bool CollectContributions();
  bool all_here() const { return missing_ == 0; }
  // The batch's poison. Else the first, by rank, that has arrived.
  Poison ContributedPoison() const;
  // Elements [begin, end) of `map` of all ranks, to be reduced.
  Contributions Contributed(const SegmentMap& map, int64_t begin,
                            int64_t end) const;
  void ReleaseContributions();

 private:
  // The block of a peer. This rank's own stays empty, because its data is in
  // the user's memory.
  struct Contribution {
    Block block;
    MoveId move = 0;
    bool here = false;
    Poison poison;
  };

  std::vector<Contribution> contributions_;  // by rank
  int missing_ = 0;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_REDUCING_CHUNK_H_
