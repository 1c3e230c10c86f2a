// SPDX-License-Identifier: Apache-2.0
// A frame is four bytes of length, then the message.
#include "transport/shm/shm_channel.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

namespace hvd {
namespace {

constexpr size_t kLengthBytes = sizeof(uint32_t);

}  // namespace

ShmChannel::ShmChannel(std::shared_ptr<ShmHost> host,
                       std::shared_ptr<ShmEndpoint> endpoint, int rank)
    : host_(std::move(host)), endpoint_(std::move(endpoint)) {
  for (int peer = 0; peer < host_->ranks(); ++peer) {
    peers_.push_back(
        {host_->messages(rank, peer), host_->messages(peer, rank), {}, 0, {}});
  }
}

void ShmChannel::Send(int peer, SharedBytes message) {
  peers_[peer].waiting.push_back(std::move(message));
  FlushTo(peer);
}

void ShmChannel::WriteFront(Peer* peer) {
  const std::string& front = *peer->waiting.front();
  const auto length = static_cast<uint32_t>(front.size());
  char head[kLengthBytes];
  std::memcpy(head, &length, kLengthBytes);
  // Writes a part of the length or of the message, as far as there is room.
  const bool in_head = peer->written < kLengthBytes;
  const char* const bytes = in_head ? head : front.data();
  const size_t size = in_head ? kLengthBytes : front.size();
  const size_t begin = in_head ? peer->written : peer->written - kLengthBytes;
  const size_t count = std::min(size - begin, peer->to.writable());
  peer->to.Write(bytes + begin, count);
  peer->written += count;
  if (peer->written < kLengthBytes + front.size()) return;
  peer->waiting.pop_front();
  peer->written = 0;
}

void ShmChannel::FlushTo(int rank) {
  Peer& peer = peers_[rank];
  bool wrote = false;
  while (!peer.waiting.empty()) {
    if (peer.to.writable() == 0 && peer.to.WaitForRoom(1)) break;
    WriteFront(&peer);
    wrote = true;
  }
  if (wrote) Ring(host_->doorbell(rank));
}

bool ShmChannel::Flush() {
  endpoint_->Poll();
  bool is_waiting = endpoint_->is_holding();
  for (int rank = 0; rank < host_->ranks(); ++rank) {
    FlushTo(rank);
    is_waiting |= !peers_[rank].waiting.empty();
  }
  return is_waiting;
}

bool ShmChannel::Receive(int* peer, std::string* message) {
  const int ranks = host_->ranks();
  for (int i = 0; i < ranks; ++i) {
    const int rank = (next_ + i) % ranks;
    if (!ReadFrom(rank)) continue;
    *peer = rank;
    *message = peers_[rank].arriving.substr(kLengthBytes);
    peers_[rank].arriving.clear();
    next_ = (rank + 1) % ranks;
    return true;
  }
  return false;
}

bool ShmChannel::ReadFrom(int rank) {
  const std::string& arriving = peers_[rank].arriving;
  if (arriving.size() < kLengthBytes && !ReadSome(rank, kLengthBytes)) {
    return false;
  }
  uint32_t length = 0;
  std::memcpy(&length, arriving.data(), kLengthBytes);
  return ReadSome(rank, kLengthBytes + length);
}

// True once `arriving` has `wanted` bytes.
bool ShmChannel::ReadSome(int rank, size_t wanted) {
  Peer& peer = peers_[rank];
  if (!peer.from.is_sane()) {
    status_ = Internal("messages in the memory shared with rank " +
                       std::to_string(rank) + " make no sense.");
    return false;
  }
  while (peer.arriving.size() < wanted) {
    const size_t before = peer.arriving.size();
    const size_t count = std::min(wanted - before, peer.from.readable());
    if (count == 0) return false;
    peer.arriving.resize(before + count);
    if (peer.from.Read(peer.arriving.data() + before, count)) {
      Ring(host_->doorbell(rank));
    }
  }
  return true;
}

}  // namespace hvd
