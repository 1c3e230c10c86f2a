// SPDX-License-Identifier: Apache-2.0
// Reducer: combines the ranks' elements, in rank order.
//
// Sums are formed on each host first, then in the order of the hosts. So they
// depend on nothing but the values and the hosts.
#ifndef HVD_TRANSPORT_COLLECTIVES_REDUCER_H_
#define HVD_TRANSPORT_COLLECTIVES_REDUCER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/host_map.h"
#include "cpu/elementwise.h"
#include "transport/collectives/packer.h"
#include "transport/collectives/segment_map.h"

namespace hvd {

// The operands of a reduction over these hosts. The type on the wire may have
// to be wider for a host's sum.
[[nodiscard]] Operands ForHosts(Operands operands, const HostMap& hosts);

// The same elements of several ranks: this one's, and those of peers.
struct Contributions {
  const SegmentMap& map;  // where they are in the inputs
  int64_t begin = 0;      // [begin, end) of the map
  int64_t end = 0;
  // As they have crossed the wire, a block of each rank. What stands at this
  // rank's place is not looked at, because its input is read where it is.
  std::vector<const std::byte*> blocks = {};
  int own_place = 0;  // this rank's among `blocks`
};

// Where they go, once they are reduced.
struct Destination {
  const SegmentMap& map;  // where they are in the outputs
  // Unless null, they also go there, as they cross the wire.
  std::byte* result = nullptr;
};

// `packer` lives longer. Background thread, and its WorkThreads.
class Reducer {
 public:
  Reducer(const Packer* packer, const HostMap& hosts);

  // Reduces the elements of all ranks. Blocks are by rank.
  void Reduce(const Contributions& from, const Destination& to) const;
  // Two levels, first step. Writes the elements of the ranks of a host,
  // reduced, into `partial`. Blocks are by place on the host. Of an average
  // `partial` is the host's sum. It is the host's average where the wire's type
  // could not hold the sum.
  void ReduceWithinHost(const Contributions& from, std::byte* partial) const;
  // Second step. Writes `count` elements of the hosts' partials, reduced, into
  // `result`, for Unpack. `partials` are by host. `result` may be one of them.
  void ReduceAcrossHosts(int64_t count,
                         const std::vector<const std::byte*>& partials,
                         std::byte* result) const;

 private:
  // Some elements of one segment.
  struct Tile {
    const Segment& segment;
    int64_t first = 0;  // within the segment
    int64_t count = 0;
    std::byte* out = nullptr;     // in the segment's output; null: dropped
    std::byte* result = nullptr;  // see Destination
  };

  // On one thread. `non_temporal`: `result` is written past the cache.
  void ReduceRange(const Contributions& from, const Destination& to,
                   bool non_temporal) const;
  // `inputs` has the ranks' elements.
  void ReduceTile(const Tile& tile, const std::vector<const void*>& inputs,
                  bool non_temporal) const;
  void ReduceHostRange(const Contributions& from, std::byte* partial) const;

  const Packer* const packer_;
  BlockReduction of_ranks_;      // of all ranks' blocks
  BlockReduction within_host_;   // of those of a host's ranks
  BlockReduction across_hosts_;  // of the hosts' partials
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_REDUCER_H_
