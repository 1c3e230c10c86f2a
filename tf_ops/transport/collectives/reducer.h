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

// `packer` lives longer. Background thread, and its WorkThreads.
class Reducer {
 public:
  Reducer(const Packer* packer, const HostMap& hosts, int rank);

  // Reduces elements [begin, end) of `in` of all ranks, and writes them to the
  // same elements of `out` in the outputs. Unless `result` is null, they also
  // go there, as they cross the wire. `blocks` are the peers', by rank. What
  // stands at this rank's place is not looked at, because its input is read
  // where it is.
  void Reduce(const SegmentMap& in, const SegmentMap& out, int64_t begin,
              int64_t end, const std::vector<const std::byte*>& blocks,
              std::byte* result) const;
  // Two levels, first step. Writes elements [begin, end) of `in` of the ranks
  // of a host, reduced, into `partial`. `blocks` are by place among them. The
  // one at `own_place` is not looked at. Of an average `partial` is the host's
  // sum. It is the host's average where the wire's type could not hold the sum.
  void ReduceWithinHost(const SegmentMap& in, int64_t begin, int64_t end,
                        const std::vector<const std::byte*>& blocks,
                        int own_place, std::byte* partial) const;
  // Second step. Writes `count` elements of the hosts' partials, reduced, into
  // `result`, for Unpack. `partials` are by host. `result` may be one of them.
  void ReduceAcrossHosts(int64_t count,
                         const std::vector<const std::byte*>& partials,
                         std::byte* result) const;

 private:
  // On one thread.
  void ReduceRange(const SegmentMap& in, const SegmentMap& out, int64_t begin,
                   int64_t end, const std::vector<const std::byte*>& blocks,
                   std::byte* result, bool non_temporal) const;
  // `inputs` has the peers' elements. This rank's are put in.
  void ReduceTile(const Segment& segment, int64_t first, std::byte* out,
                  int64_t count, std::vector<const void*>* inputs,
                  std::byte* result, bool non_temporal) const;
  void ReduceHostRange(const SegmentMap& in, int64_t begin, int64_t end,
                       const std::vector<const std::byte*>& blocks,
                       int own_place, std::byte* partial) const;

  const Packer* const packer_;
  const int rank_;
  Averaged averaged_;        // what the ranks' blocks stand for
  Averaged hosts_averaged_;  // what the hosts' partials stand for
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_REDUCER_H_
