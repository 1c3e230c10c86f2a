// SPDX-License-Identifier: Apache-2.0
// ShmPort: one rank's moves to and from the other ranks of its host.
#ifndef HVD_TRANSPORT_SHM_PORT_H_
#define HVD_TRANSPORT_SHM_PORT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/status.h"
#include "transport/shm_arena.h"
#include "transport/shm_host.h"
#include "transport/stream_choice.h"
#include "transport/wire.h"

namespace hvd {

// What crosses a ring of moves.
struct ShmMove {
  uint32_t kind;  // ShmPort::Kind
  uint32_t tag;   // with the process set in its upper bits
  uint64_t id;    // the sender's for the move
  uint64_t offset;
  uint64_t bytes;
};
static_assert(sizeof(ShmMove) == 32);

// A send tells the peer where in this rank's arena the bytes are; the peer
// reads them there and tells when it has. Shared by the wires of all process
// sets of the rank. Ranks are local ones. Its rank's background thread.
class ShmPort {
 public:
  // `stream_policy`: of the StreamChoice.
  ShmPort(std::shared_ptr<ShmHost> host, int rank,
          int64_t stream_policy = StreamChoice::kMeasured);

  ShmArena& arena() { return arena_; }
  // How the arena is written.
  StreamChoice& stream_choice() { return stream_choice_; }
  const Status& status() const { return status_; }

  MoveId Send(int peer, uint32_t tag, const void* data, size_t bytes);
  MoveId Receive(int peer, uint32_t tag);
  // As Wire's, whose lending kind this is.
  bool Test(MoveId id);
  Lent Arrived(MoveId id) const { return moves_[id].lent; }
  void Release(MoveId id);

  // Takes what has come and passes on what a full ring has held up.
  void Poll();
  // Whether a full ring still holds something up.
  bool is_holding() const;

  // The set's wire is gone: what still comes for it is let go of unread, and
  // `memory`, of HoldMemory or null, is held until the peers have let go of
  // what was sent.
  void Close(uint32_t set_id, std::shared_ptr<void> memory);

 private:
  enum Kind : uint32_t { kSend = 1, kDone = 2 };

  struct Move {
    bool in_use = false;
    bool is_receive = false;
    bool done = false;
    int peer = 0;
    uint32_t tag = 0;
    uint64_t sender_id = 0;  // of a receive that is done
    Lent lent;
  };
  struct Arrival {
    uint64_t sender_id;
    Lent lent;
  };
  using Key = uint64_t;  // peer and tag
  struct Orphans {
    std::set<MoveId> sends;
    std::shared_ptr<void> memory;
  };

  static Key KeyOf(int peer, uint32_t tag) {
    return static_cast<Key>(peer) << 32 | tag;
  }
  MoveId NewMove(int peer, uint32_t tag, bool is_receive);
  void Forget(MoveId id);
  void Put(int peer, const ShmMove& move);
  void FlushTo(int peer);
  void Take(int peer);
  void SweepOrphans();
  void Handle(int peer, const ShmMove& move);
  void HandleSend(int peer, const ShmMove& move);
  void HandleDone(int peer, const ShmMove& move);
  void Break(int peer);

  const std::shared_ptr<ShmHost> host_;
  const int rank_;
  ShmArena arena_;
  StreamChoice stream_choice_;
  Status status_;
  std::vector<ShmRing> to_, from_;         // by peer
  std::vector<std::deque<ShmMove>> held_;  // by peer: for a ring that is full
  std::vector<Move> moves_;
  std::vector<MoveId> free_;
  std::unordered_map<Key, std::deque<MoveId>> posted_;
  std::unordered_map<Key, std::deque<Arrival>> arrived_;
  std::set<uint32_t> closed_sets_;
  std::list<Orphans> orphans_;
};

// Memory of the port's arena on which moves may be under way: the arena has it
// back when nobody holds it any more, if there still is one.
[[nodiscard]] std::shared_ptr<void> HoldMemory(
    const std::shared_ptr<ShmPort>& port, std::vector<StagingBuffer> memory);

}  // namespace hvd

#endif  // HVD_TRANSPORT_SHM_PORT_H_
