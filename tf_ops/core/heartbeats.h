// SPDX-License-Identifier: Apache-2.0
// Heartbeats: which ranks' background threads still answer.
#ifndef HVD_CORE_HEARTBEATS_H_
#define HVD_CORE_HEARTBEATS_H_

#include <chrono>
#include <optional>
#include <vector>

#include "core/control/stall.h"

namespace hvd {

// The *watch* is the lowest rank that answers. From time to time it asks all
// others, and they answer at once. Its questions show the others that it lives.
// When the questions stop, the next rank takes over. That takes two small
// messages for each rank and interval, over connections that the control plane
// has anyway.
//
// Reads no clock and knows no wire; see docs/decisions/0008. The caller's times
// must leave out any time in which this process did not run, because it has not
// read what peers sent meanwhile. Background thread only. Ranks are ranks of
// the job.
class Heartbeats {
 public:
  using Clock = std::chrono::steady_clock;

  // `limit_s` is the shortest silence that matters. With 0 none does, and this
  // rank only answers.
  Heartbeats(int rank, int size, double limit_s, Clock::time_point now);

  // How often Ask must be called. Nothing: never.
  std::optional<Clock::duration> interval() const { return interval_; }

  // Heard: a message came from the peer. Answered: it was the answer to a
  // question of Ask.
  void Heard(int peer, Clock::time_point now);
  void Answered(int peer);
  // The peer has left or failed. It need not answer any more.
  void Ended(int peer);

  // The peers to ask now. No peer is asked again before it has answered, so
  // that nothing piles up for a rank that reads nothing.
  std::vector<int> Ask(Clock::time_point now);

  // Whether this rank is the watch, as of the last Ask.
  bool watches() const { return watch_ == rank_; }
  // On the watch: which peers have not answered, and for how long.
  std::vector<Silence> Silences(Clock::time_point now) const;
  // Whether the peer has not answered for longer than a busy machine explains.
  bool IsSilent(int peer, Clock::time_point now) const;
  // Whether the peer owes this rank no answer.
  bool has_answered(int peer) const { return !peers_[peer].asked.has_value(); }

 private:
  struct Peer {
    bool ended = false;
    Clock::time_point heard;
    std::optional<Clock::time_point> asked;  // set: not answered yet
  };

  void FindWatch(Clock::time_point now);
  Clock::duration SilenceOf(int peer, Clock::time_point now) const;

  const int rank_;
  std::optional<Clock::duration> interval_;
  Clock::duration doubt_{};  // after such a silence the next rank is the watch
  std::vector<Peer> peers_;
  int watch_ = 0;
  Clock::time_point last_ask_;
};

}  // namespace hvd

#endif  // HVD_CORE_HEARTBEATS_H_
