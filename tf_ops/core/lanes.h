// SPDX-License-Identifier: Apache-2.0
// LaneTable: the transports of a process set, one for each kind of memory.
#ifndef HVD_CORE_LANES_H_
#define HVD_CORE_LANES_H_

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/host_map.h"
#include "core/status.h"
#include "core/transport.h"
#include "core/types.h"

namespace hvd {

// Null: this build has no such lane.
struct LaneTable {
  std::array<std::unique_ptr<Transport>, kMemoryKindCount> transports;

  std::unique_ptr<Transport>& of(MemoryKind memory) {
    return transports[static_cast<size_t>(memory)];
  }
  Transport* of(MemoryKind memory) const {
    return transports[static_cast<size_t>(memory)].get();
  }
  static LaneTable HostOnly(std::unique_ptr<Transport> host) {
    LaneTable lanes;
    lanes.of(MemoryKind::kHost) = std::move(host);
    return lanes;
  }
};
// A GPU's lane uses the host's, so it must go first. An array's last elements
// do.
static_assert(MemoryKind::kHost < MemoryKind::kCuda);

// What a set offers to one of its lanes.
struct LaneOwner {
  // Asks all ranks to meet. Once all have asked that have not joined,
  // Transport::Meet is called on every rank, at the same place in the order of
  // batches. Then `answered` is called with Ok, on ranks that had asked. If the
  // set ends, it is called with a failure instead. It may be called at once, or
  // after the lane has gone. Nobody asks again before that.
  std::function<void(std::function<void(const Status&)> answered)> ask_to_meet;
  // The id that users call the set by: equal on all its ranks, unique among the
  // sets that exist.
  int set_id = 0;
  // The ranks of the job that the set's ranks are, for messages. Empty: the
  // numbers are the same.
  std::vector<int> job_ranks;
  // Which of its ranks share a host.
  HostMap hosts;
  // GPUs work among themselves within a host only. Between hosts, an allreduce
  // goes by the hosts' transport.
  bool is_hierarchical = false;
  // A batch that GPUs do among themselves is done once the framework's streams
  // wait for it. If it fails later, so does the next one.
  bool completes_in_stream = false;
  // A wait of so many seconds ends the job. 0: none does.
  double stall_shutdown_s = 0;
  // GPUs may be the same one: what connects them was told that they are not.
  bool may_share_gpu = false;
  // Why this rank's GPUs may not reduce among themselves. Empty: they may.
  std::string refusal;
};

// Makes the lanes of a GPU's memory. It outlives them. Owner: the
// Runtime, whose background thread alone uses it.
class DeviceLanes {
 public:
  virtual ~DeviceLanes() = default;
  // One for a set, beside its host transport, which outlives it. Every member
  // calls it. It touches no GPU, so it works without one.
  virtual std::unique_ptr<Transport> NewLane(Transport* host,
                                             LaneOwner owner) = 0;
};

}  // namespace hvd

#endif  // HVD_CORE_LANES_H_
