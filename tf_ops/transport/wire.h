// SPDX-License-Identifier: Apache-2.0
// Wire: point-to-point moves of bytes between the ranks of one process set.
#ifndef HVD_TRANSPORT_WIRE_H_
#define HVD_TRANSPORT_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/host_map.h"
#include "core/status.h"
#include "cpu/store_choice.h"
#include "transport/staging_pool.h"

namespace hvd {

// Names a move until Test has returned true for it.
using MoveId = uint64_t;

// What a zero-copy wire has brought: memory of the sender. It is read only.
struct Borrowed {
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

// A send matches a receive with the same sender, receiver and tag. Several of
// them match in the order of the calls. Nothing blocks. Thread: the owner's.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The pool that the memory of moves comes from.
  virtual StagingPool& staging() = 0;
  // Chooses how to write blocks that peers read in place. Null: peers read no
  // blocks in place.
  virtual StoreChoice* store_choice() { return nullptr; }
  // Which ranks share a host. Moves within a host are cheap.
  virtual const HostMap& hosts() const = 0;
  // Whether this rank and `peer` read each other's data in place. It holds for
  // all pairs of ranks of a host, or for none. Then Receive gets no memory, and
  // a send is done when its receiver has released it.
  virtual bool zero_copy(int peer) const = 0;
  // Tags are below 2^14. The wire uses the memory until the move is done.
  virtual MoveId Send(int peer, uint32_t tag, const void* data,
                      size_t bytes) = 0;
  // The message may be shorter than `bytes`.
  virtual MoveId Receive(int peer, uint32_t tag, void* data, size_t bytes) = 0;
  // Looks for arrivals. Call it before a round of Tests.
  virtual void Poll() {}
  // True once the move is done. The id is invalid then, except for a receive
  // from a zero-copy peer.
  virtual bool Test(MoveId id) = 0;
  // For a receive from a zero-copy peer. Arrived returns the data. Release
  // ends the reading of it, and the id is invalid then.
  virtual Borrowed Arrived(MoveId) const { return {}; }
  virtual void Release(MoveId) {}
  // Not Ok for good once a move has failed. Moves in flight never end then.
  virtual Status status() const = 0;
  // The last call before the destructor. Nobody tests the moves in flight any
  // more. `memory` is their memory. It is freed once they cannot touch it.
  virtual void Abandon(std::vector<StagingBuffer> memory) = 0;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_WIRE_H_
