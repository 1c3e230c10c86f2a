// SPDX-License-Identifier: Apache-2.0
// PeerWatch: warns of ranks that do not answer or keep others waiting, and says
// which one to give up.
#ifndef HVD_CORE_PEER_WATCH_H_
#define HVD_CORE_PEER_WATCH_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/control/message.h"
#include "core/control/stall_finder.h"
#include "core/heartbeats.h"
#include "core/options.h"
#include "core/peer_names.h"
#include "core/stack_requests.h"

namespace hvd {

// Sends the questions of Heartbeats and the answers to a peer's, and turns what
// it and the leaders find into warnings. It gives up no rank itself.
//
// `now` is the time. `awake` leaves out the time in which this process was
// stopped. It has not read what peers sent in that time, so the time must not
// count against them.
//
// Owner: the background loop. Background thread only. Ranks are ranks of the
// job.
class PeerWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // Sends by `channel`. Both pointers must outlive it.
  PeerWatch(Backend* backend, Channel* channel, const Options& options,
            std::shared_ptr<StackRequests> stacks, Clock::time_point awake);

  // A message came from the peer. A Beat is then handled too.
  void Heard(int peer, Clock::time_point awake) {
    heartbeats_.Heard(peer, awake);
  }
  void Handle(int peer, const Beat& beat, Clock::time_point now);
  // The peer has left or failed. It need not answer any more.
  void Ended(int peer) { heartbeats_.Ended(peer); }

  // How often to look.
  Clock::duration interval() const { return interval_; }
  // How often peers must be asked. Nothing: never.
  std::optional<Clock::duration> question_interval() const {
    return heartbeats_.interval();
  }

  // A look has these parts, in this order. The first one is for this rank's
  // own stacks, and holds even after it or a peer has failed.
  void LookAtStacks(Clock::time_point now) { stacks_->Look(now); }
  void AskPeers(Clock::time_point awake);

  // A rank that all must give up, and why.
  struct Lost {
    int rank = 0;
    std::string text;
  };
  struct Finding {
    bool warned = false;
    std::optional<Lost> lost;  // set: nothing else counts
  };
  // `waiting_names` is called for what this rank waits for, when it matters.
  using WaitingNames = std::function<std::vector<std::string>()>;
  Finding LookAtPeers(Clock::time_point awake,
                      const WaitingNames& waiting_names);
  // What the leader of a set has found.
  Finding LookAtSet(Watched watched, Clock::time_point awake);
  // Asks for the stacks of this rank and of all peers that answer. To be called
  // after a warning.
  void AskForStacks(Clock::time_point now, Clock::time_point awake);

 private:
  void TellWhoIsBack();
  // Leaves out silent ranks, of whom LookAtPeers has said all, and those whose
  // reports a silent rank may have.
  void KeepThoseThatAnswer(Stall* stall, Clock::time_point awake) const;
  void Send(int peer, const Beat& beat);

  Backend* const backend_;
  Channel* const channel_;
  const Options options_;
  const PeerNames names_;
  const std::shared_ptr<StackRequests> stacks_;
  Heartbeats heartbeats_;
  Clock::duration interval_{};
  // By rank. A silence of so many seconds is due for a warning.
  std::vector<double> next_silence_warning_s_;
};

}  // namespace hvd

#endif  // HVD_CORE_PEER_WATCH_H_
