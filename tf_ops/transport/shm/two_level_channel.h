// SPDX-License-Identifier: Apache-2.0
// TwoLevelChannel: messages of a job that spans hosts.
#ifndef HVD_TRANSPORT_SHM_TWO_LEVEL_CHANNEL_H_
#define HVD_TRANSPORT_SHM_TWO_LEVEL_CHANNEL_H_

#include <string>
#include <vector>

#include "core/backend.h"

namespace hvd {

// Two ranks always use the same channel, so messages between them stay in
// order.
class TwoLevelChannel final : public Channel {
 public:
  // `within` takes local ranks, and `across` takes ranks of the job. Both must
  // outlive this object.
  TwoLevelChannel(const Topology& topology, Channel* within, Channel* across);
  void Send(int peer, SharedBytes message) override;
  bool Receive(int* peer, std::string* message) override;
  bool Flush() override;
  Status status() const override;

 private:
  Channel* const within_;
  Channel* const across_;
  const std::vector<int> ranks_;  // of this host, by local rank
  std::vector<int> local_ranks_;  // by rank; -1: on another host
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_SHM_TWO_LEVEL_CHANNEL_H_
