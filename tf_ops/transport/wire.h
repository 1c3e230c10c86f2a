// SPDX-License-Identifier: Apache-2.0
// Wire: point-to-point moves of bytes between the ranks of one process set.
#ifndef HVD_TRANSPORT_WIRE_H_
#define HVD_TRANSPORT_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/status.h"
#include "transport/host_map.h"
#include "transport/staging_pool.h"
#include "transport/stream_choice.h"

namespace hvd {

// Names a move until Test has returned true for it.
using MoveId = uint64_t;

// What a lending wire has brought: memory of the sender's, to be read only.
struct Lent {
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

// A move with the same (sender, receiver, tag) as an earlier one matches in
// the order of the calls. Nothing blocks. One thread, the owner's.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Where the memory of moves comes from.
  virtual StagingPool& staging() = 0;
  // How blocks are written that peers read where they are; null: there are
  // none.
  virtual StreamChoice* stream_choice() { return nullptr; }
  // The levels that a collective should respect: moves within a host are cheap.
  virtual const HostMap& hosts() const = 0;
  // Whether this rank and `peer` read what comes from the other where it has
  // it; so it is between any two ranks of a host, or between none. Then Receive
  // is given no memory, and a send is done when its receiver has let go of it.
  virtual bool lends(int peer) const = 0;
  // Tags are below 2^14. The memory is the wire's until the move is done.
  virtual MoveId Send(int peer, uint32_t tag, const void* data,
                      size_t bytes) = 0;
  // The message may be shorter than `bytes`.
  virtual MoveId Receive(int peer, uint32_t tag, void* data, size_t bytes) = 0;
  // Looks for what has arrived. To be called before a round of Tests.
  virtual void Poll() {}
  // True once the move is done; the id is then forgotten, but for a receive
  // from a peer that lends.
  virtual bool Test(MoveId id) = 0;
  // Of a receive from a peer that lends: what has come, and the end of reading
  // it.
  virtual Lent Arrived(MoveId) const { return {}; }
  virtual void Release(MoveId) {}
  // Not Ok for good once a move has failed: what is in flight never ends.
  virtual Status status() const = 0;
  // The last call but for the destructor: nobody tests the moves in flight any
  // more. `memory` is theirs; it is let go when they cannot touch it.
  virtual void Abandon(std::vector<StagingBuffer> memory) = 0;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_WIRE_H_
