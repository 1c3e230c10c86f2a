// SPDX-License-Identifier: Apache-2.0
// Shared memory within the host, another channel between hosts.
#include "transport/shm/two_level_channel.h"

#include <utility>

namespace hvd {

TwoLevelChannel::TwoLevelChannel(const Topology& topology, Channel* within,
                                 Channel* across)
    : within_(within),
      across_(across),
      ranks_(topology.local_ranks),
      local_ranks_(topology.size, -1) {
  for (size_t local = 0; local < ranks_.size(); ++local) {
    local_ranks_[ranks_[local]] = static_cast<int>(local);
  }
}

void TwoLevelChannel::Send(int peer, SharedBytes message) {
  if (local_ranks_[peer] < 0) {
    across_->Send(peer, std::move(message));
  } else {
    within_->Send(local_ranks_[peer], std::move(message));
  }
}

bool TwoLevelChannel::Receive(int* peer, std::string* message) {
  if (within_->Receive(peer, message)) {
    *peer = ranks_[*peer];
    return true;
  }
  return across_->Receive(peer, message);
}

bool TwoLevelChannel::Flush() {
  const bool within = within_->Flush();
  return across_->Flush() || within;
}

Status TwoLevelChannel::status() const {
  return within_->status().ok() ? across_->status() : within_->status();
}

}  // namespace hvd
