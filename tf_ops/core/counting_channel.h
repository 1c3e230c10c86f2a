// SPDX-License-Identifier: Apache-2.0
// CountingChannel: a channel that counts its messages and their bytes.
#ifndef HVD_CORE_COUNTING_CHANNEL_H_
#define HVD_CORE_COUNTING_CHANNEL_H_

#include <string>
#include <utility>

#include "core/backend.h"
#include "core/comm_stats.h"
#include "core/shared_bytes.h"
#include "core/status.h"

namespace hvd {

// Both pointers outlive it. Thread: that of the channel.
class CountingChannel final : public Channel {
 public:
  CountingChannel(Channel* channel, CommCounters* counters)
      : channel_(channel), counters_(counters) {}

  void Send(int peer, SharedBytes message) override {
    counters_->control_messages_sent.Add(1);
    counters_->control_bytes_sent.Add(message->size());
    channel_->Send(peer, std::move(message));
  }
  bool Receive(int* peer, std::string* message) override {
    if (!channel_->Receive(peer, message)) return false;
    counters_->control_messages_received.Add(1);
    counters_->control_bytes_received.Add(message->size());
    return true;
  }
  bool Flush() override { return channel_->Flush(); }
  Status status() const override { return channel_->status(); }

 private:
  Channel* const channel_;
  CommCounters* const counters_;
};

}  // namespace hvd

#endif  // HVD_CORE_COUNTING_CHANNEL_H_
