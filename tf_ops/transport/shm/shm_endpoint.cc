// SPDX-License-Identifier: Apache-2.0
// Matches sends that were announced with receives that were posted.
#include "transport/shm/shm_endpoint.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace hvd {

ShmEndpoint::ShmEndpoint(std::shared_ptr<ShmHost> host, int rank,
                         int64_t store_policy)
    : host_(std::move(host)),
      rank_(rank),
      arena_(host_->arena(rank), host_->arena_bytes(), host_->segment()),
      store_choice_(store_policy),
      held_(host_->ranks()) {
  for (int peer = 0; peer < host_->ranks(); ++peer) {
    to_.push_back(host_->moves(rank, peer));
    from_.push_back(host_->moves(peer, rank));
  }
}

MoveId ShmEndpoint::NewMove(int peer, uint32_t tag, bool is_receive) {
  if (free_.empty()) {
    free_.push_back(moves_.size());
    moves_.push_back({});
  }
  const MoveId id = free_.back();
  free_.pop_back();
  moves_[id] = {true, is_receive, false, peer, tag, 0, {}};
  return id;
}

void ShmEndpoint::Forget(MoveId id) {
  moves_[id].in_use = false;
  free_.push_back(id);
}

MoveId ShmEndpoint::Send(int peer, uint32_t tag, const void* data,
                         size_t bytes) {
  const MoveId id = NewMove(peer, tag, false);
  const auto offset = static_cast<uint64_t>(
      static_cast<const std::byte*>(data) - host_->arena(rank_));
  Put(peer, {kSend, tag, id, offset, bytes});
  return id;
}

MoveId ShmEndpoint::Receive(int peer, uint32_t tag) {
  const MoveId id = NewMove(peer, tag, true);
  auto found = arrived_.find(KeyOf(peer, tag));
  if (found == arrived_.end()) {
    posted_[KeyOf(peer, tag)].push_back(id);
    return id;
  }
  const Arrival arrival = found->second.front();
  found->second.pop_front();
  if (found->second.empty()) arrived_.erase(found);
  moves_[id].done = true;
  moves_[id].sender_id = arrival.sender_id;
  moves_[id].borrowed = arrival.borrowed;
  return id;
}

bool ShmEndpoint::Test(MoveId id) {
  if (!moves_[id].done || !status_.ok()) return false;
  if (!moves_[id].is_receive) Forget(id);
  return true;
}

void ShmEndpoint::Release(MoveId id) {
  const Move& move = moves_[id];
  Put(move.peer, {kDone, move.tag, move.sender_id, 0, 0});
  Forget(id);
}

void ShmEndpoint::Put(int peer, const ShmMove& move) {
  held_[peer].push_back(move);
  FlushTo(peer);
}

void ShmEndpoint::FlushTo(int peer) {
  std::deque<ShmMove>& held = held_[peer];
  if (held.empty()) return;
  bool written = false;
  while (!held.empty()) {
    if (to_[peer].writable() < sizeof(ShmMove) &&
        to_[peer].WaitForRoom(sizeof(ShmMove))) {
      break;
    }
    to_[peer].Write(&held.front(), sizeof(ShmMove));
    held.pop_front();
    written = true;
  }
  if (written) Ring(host_->doorbell(peer));
}

void ShmEndpoint::Poll() {
  for (int peer = 0; peer < host_->ranks(); ++peer) {
    Take(peer);
    FlushTo(peer);
  }
  if (!orphans_.empty()) SweepOrphans();
}

bool ShmEndpoint::is_holding() const {
  return std::any_of(held_.begin(), held_.end(),
                     [](const auto& held) { return !held.empty(); });
}

void ShmEndpoint::SweepOrphans() {
  for (auto orphans = orphans_.begin(); orphans != orphans_.end();) {
    std::set<MoveId>& sends = orphans->sends;
    for (auto id = sends.begin(); id != sends.end();) {
      id = Test(*id) ? sends.erase(id) : std::next(id);
    }
    if (!sends.empty()) {
      ++orphans;
      continue;
    }
    orphans = orphans_.erase(orphans);
  }
}

void ShmEndpoint::Take(int peer) {
  ShmMove move;
  bool wants_ring = false;
  while (from_[peer].readable() >= sizeof(move)) {
    if (!from_[peer].is_sane()) return Break(peer);
    wants_ring |= from_[peer].Read(&move, sizeof(move));
    Handle(peer, move);
  }
  if (wants_ring) Ring(host_->doorbell(peer));
}

void ShmEndpoint::Handle(int peer, const ShmMove& move) {
  if (move.kind == kSend) return HandleSend(peer, move);
  if (move.kind == kDone) return HandleDone(peer, move);
  Break(peer);
}

void ShmEndpoint::HandleSend(int peer, const ShmMove& move) {
  if (move.offset > host_->arena_bytes() ||
      move.bytes > host_->arena_bytes() - move.offset) {
    return Break(peer);
  }
  if (closed_slots_.count(move.tag >> kShmSlotShift) > 0) {
    return Put(peer, {kDone, move.tag, move.id, 0, 0});
  }
  const Borrowed borrowed{host_->arena(peer) + move.offset, move.bytes};
  auto found = posted_.find(KeyOf(peer, move.tag));
  if (found == posted_.end()) {
    arrived_[KeyOf(peer, move.tag)].push_back({move.id, borrowed});
    return;
  }
  Move& receive = moves_[found->second.front()];
  found->second.pop_front();
  if (found->second.empty()) posted_.erase(found);
  receive.done = true;
  receive.sender_id = move.id;
  receive.borrowed = borrowed;
}

void ShmEndpoint::HandleDone(int peer, const ShmMove& move) {
  const bool fits = move.id < moves_.size() && moves_[move.id].in_use &&
                    !moves_[move.id].is_receive &&
                    moves_[move.id].peer == peer && !moves_[move.id].done;
  if (!fits) return Break(peer);
  moves_[move.id].done = true;
}

void ShmEndpoint::Break(int peer) {
  if (!status_.ok()) return;
  status_ = Internal("bytes in the memory shared with local rank " +
                     std::to_string(peer) + " make no sense.");
}

void ShmEndpoint::Close(uint32_t slot, std::shared_ptr<void> memory) {
  closed_slots_.insert(slot);
  const auto of_set = [&](Key key) {
    return static_cast<uint32_t>(key) >> kShmSlotShift == slot;
  };
  for (auto at = posted_.begin(); at != posted_.end();) {
    at = of_set(at->first) ? posted_.erase(at) : std::next(at);
  }
  for (auto at = arrived_.begin(); at != arrived_.end();) {
    if (!of_set(at->first)) {
      ++at;
      continue;
    }
    for (const Arrival& arrival : at->second) {
      Put(static_cast<int>(at->first >> 32),
          {kDone, static_cast<uint32_t>(at->first), arrival.sender_id, 0, 0});
    }
    at = arrived_.erase(at);
  }
  Orphans orphans;
  for (MoveId id = 0; id < moves_.size(); ++id) {
    if (!moves_[id].in_use || !of_set(moves_[id].tag)) continue;
    if (!moves_[id].is_receive) {
      orphans.sends.insert(id);
    } else if (moves_[id].done) {
      Release(id);
    } else {
      Forget(id);
    }
  }
  orphans.memory = std::move(memory);
  orphans_.push_back(std::move(orphans));
  SweepOrphans();
}

namespace {

struct Hold {
  Hold(std::weak_ptr<ShmEndpoint> of, std::vector<StagingBuffer> buffers)
      : endpoint(std::move(of)), memory(std::move(buffers)) {}
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() {
    const std::shared_ptr<ShmEndpoint> alive = endpoint.lock();
    if (alive == nullptr) return;
    for (StagingBuffer& buffer : memory) alive->arena().Give(std::move(buffer));
  }

  const std::weak_ptr<ShmEndpoint> endpoint;
  std::vector<StagingBuffer> memory;
};

}  // namespace

std::shared_ptr<void> HoldMemory(const std::shared_ptr<ShmEndpoint>& endpoint,
                                 std::vector<StagingBuffer> memory) {
  return std::make_shared<Hold>(endpoint, std::move(memory));
}

}  // namespace hvd
