// SPDX-License-Identifier: Apache-2.0
// LaneTable: the transports of a process set, one for each kind of memory.
#ifndef HVD_CORE_LANES_H_
#define HVD_CORE_LANES_H_

#include <array>
#include <cstddef>
#include <memory>
#include <utility>

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
// A card's lane uses the host's, so it must go first. An array's last elements
// do.
static_assert(MemoryKind::kHost < MemoryKind::kCuda);

// Makes the lanes of a card's memory. It outlives them. Owner: the
// Runtime, whose background thread alone uses it.
class DeviceLanes {
 public:
  virtual ~DeviceLanes() = default;
  // One for a set, beside its host transport, which outlives it. Every member
  // calls it. It touches no card, so it works without one.
  virtual std::unique_ptr<Transport> NewLane(Transport* host) = 0;
};

}  // namespace hvd

#endif  // HVD_CORE_LANES_H_
