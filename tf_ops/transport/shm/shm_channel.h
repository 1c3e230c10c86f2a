// SPDX-License-Identifier: Apache-2.0
// ShmChannel: messages between the ranks of one host.
#ifndef HVD_TRANSPORT_SHM_SHM_CHANNEL_H_
#define HVD_TRANSPORT_SHM_SHM_CHANNEL_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "transport/shm/shm_endpoint.h"
#include "transport/shm/shm_host.h"

namespace hvd {

// Streams each message through the pair's ring, with its length before it. A
// message may be longer than the ring. Ranks are local ranks.
class ShmChannel final : public Channel {
 public:
  // Flush also sends what the endpoint holds back.
  ShmChannel(std::shared_ptr<ShmHost> host,
             std::shared_ptr<ShmEndpoint> endpoint, int rank);
  void Send(int peer, SharedBytes message) override;
  bool Receive(int* peer, std::string* message) override;
  bool Flush() override;
  Status status() const override { return status_; }

 private:
  struct Peer {
    ShmRing to, from;
    std::deque<SharedBytes> waiting;  // not yet written, each after its length
    size_t written = 0;    // bytes of waiting.front(), with its length
    std::string arriving;  // what has come of it, with its length
  };

  void WriteFront(Peer* peer);
  void FlushTo(int rank);
  // True if `arriving` has become a whole message.
  bool ReadFrom(int rank);
  bool ReadSome(int rank, size_t wanted);

  const std::shared_ptr<ShmHost> host_;
  const std::shared_ptr<ShmEndpoint> endpoint_;
  std::vector<Peer> peers_;
  int next_ = 0;  // the peer to look at first
  Status status_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_SHM_SHM_CHANNEL_H_
