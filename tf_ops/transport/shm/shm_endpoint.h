// SPDX-License-Identifier: Apache-2.0
// ShmEndpoint: one rank's moves to and from the other ranks of its host.
#ifndef HVD_TRANSPORT_SHM_SHM_ENDPOINT_H_
#define HVD_TRANSPORT_SHM_SHM_ENDPOINT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "core/status.h"
#include "cpu/store_choice.h"
#include "transport/shm/shm_arena.h"
#include "transport/shm/shm_host.h"
#include "transport/wire.h"

namespace hvd {

// Tags of a wire are below 2^14. The bits above them have the set's slot.
inline constexpr int kShmSlotShift = 14;
inline uint32_t ShmTag(uint32_t slot, uint32_t tag) {
  return slot << kShmSlotShift | tag;
}

// One message in a ring of moves.
struct ShmMove {
  uint32_t kind;  // ShmEndpoint::Kind
  uint32_t tag;   // with the set's slot in its upper bits
  uint64_t id;    // the sender's for the move
  uint64_t offset;
  uint64_t bytes;
};
static_assert(sizeof(ShmMove) == 32);

// A send tells the peer where in this rank's arena the bytes are. The peer
// reads them there, and answers when it has done so. The wires of all the
// rank's process sets share one endpoint. Ranks are local ranks. Thread: the
// rank's background thread.
class ShmEndpoint {
 public:
  // `store_policy` is the policy of the StoreChoice.
  ShmEndpoint(std::shared_ptr<ShmHost> host, int rank,
              int64_t store_policy = StoreChoice::kMeasured);

  ShmArena& arena() { return arena_; }
  // Decides how blocks in the arena are written.
  StoreChoice& store_choice() { return store_choice_; }
  const Status& status() const { return status_; }

  MoveId Send(int peer, uint32_t tag, const void* data, size_t bytes);
  MoveId Receive(int peer, uint32_t tag);
  // Like those of a zero-copy Wire.
  bool Test(MoveId id);
  Borrowed Arrived(MoveId id) const { return moves_[id].borrowed; }
  void Release(MoveId id);

  // Takes the moves that have come, and sends those that a full ring has held
  // back.
  void Poll();
  // Whether a full ring still holds a move back.
  bool is_holding() const;

  // A wire of that slot begins. No move of an earlier one is under way.
  void Open(uint32_t slot) { closed_slots_.erase(slot); }
  // The set's wire is gone. Moves that still come for it are released unread.
  // `memory` comes from HoldMemory, or is null. It is held until the peers have
  // released what was sent.
  void Close(uint32_t slot, std::shared_ptr<void> memory);

 private:
  enum Kind : uint32_t { kSend = 1, kDone = 2 };

  struct Move {
    bool in_use = false;
    bool is_receive = false;
    bool done = false;
    int peer = 0;
    uint32_t tag = 0;
    uint64_t sender_id = 0;  // of a receive that is done
    Borrowed borrowed;
  };
  struct Arrival {
    uint64_t sender_id;
    Borrowed borrowed;
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
  StoreChoice store_choice_;
  Status status_;
  std::vector<ShmRing> to_, from_;         // by peer
  std::vector<std::deque<ShmMove>> held_;  // by peer: moves for a full ring
  std::vector<Move> moves_;
  std::vector<MoveId> free_;
  std::unordered_map<Key, std::deque<MoveId>> posted_;
  std::unordered_map<Key, std::deque<Arrival>> arrived_;
  std::set<uint32_t> closed_slots_;
  std::list<Orphans> orphans_;
};

// Holds memory of the endpoint's arena that moves may still use. When nobody
// holds it any more, it goes back to the arena, if that still exists.
[[nodiscard]] std::shared_ptr<void> HoldMemory(
    const std::shared_ptr<ShmEndpoint>& endpoint,
    std::vector<StagingBuffer> memory);

}  // namespace hvd

#endif  // HVD_TRANSPORT_SHM_SHM_ENDPOINT_H_
