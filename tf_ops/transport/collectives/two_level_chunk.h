// SPDX-License-Identifier: Apache-2.0
// TwoLevelChunk: a chunk that is reduced within each host, then across hosts.
#ifndef HVD_TRANSPORT_COLLECTIVES_TWO_LEVEL_CHUNK_H_
#define HVD_TRANSPORT_COLLECTIVES_TWO_LEVEL_CHUNK_H_

#include <cstdint>
#include <vector>

#include "transport/collectives/chunk.h"

namespace hvd {

// Knows this rank's place among the hosts, and awaits blocks of other ranks.
class TwoLevelChunk : public Chunk {
 public:
  TwoLevelChunk(Phase* phase, int64_t index)
      : Chunk(phase, index),
        host_(hosts().host[work_->rank()]),
        place_(hosts().place[work_->rank()]) {}

 protected:
  // A block that this rank gets.
  struct Arrival {
    int peer = -1;  // -1: none comes here
    Block block;
    MoveId move = 0;
    bool is_awaited = false;
    Poison poison;  // once it has been collected
  };

  // The ranks of this rank's host.
  const std::vector<int>& neighbours() const { return hosts().ranks[host_]; }
  // Before Start: see AddArrival.
  Arrival NewArrival(int peer, int64_t payload_bytes) {
    return {peer, AddArrival(peer, payload_bytes), 0, false, {}};
  }
  // After Start.
  void Expect(int hop, Arrival* arrival);
  // All that come. `missing` counts them.
  void ExpectAll(int hop, std::vector<Arrival>* arrivals, int* missing);
  // True once for each Expect: the block can be read until Release.
  bool HasCome(Arrival* arrival);
  // Reads what has come. `missing` counts those that have not. True if anything
  // has.
  bool Collect(std::vector<Arrival>* arrivals, int* missing);
  // The poison of the batch, if it has one. Else the first that has arrived.
  Poison FirstPoison(const std::vector<Arrival>& arrivals) const;
  void Release(Arrival* arrival) {
    Chunk::Release(arrival->move, &arrival->block);
  }
  // All that came.
  void ReleaseAll(std::vector<Arrival>* arrivals);

  const int host_;
  const int place_;  // among its ranks
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_TWO_LEVEL_CHUNK_H_
