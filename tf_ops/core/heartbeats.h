// SPDX-License-Identifier: Apache-2.0
// Heartbeats: which ranks' background threads still answer.
#ifndef HVD_CORE_HEARTBEATS_H_
#define HVD_CORE_HEARTBEATS_H_

#include <chrono>
#include <optional>
#include <vector>

#include "core/stall.h"

namespace hvd {

// One rank asks all others from time to time, and they answer at once: the
// *watch*, which is the lowest rank that answers. The others see from its
// questions that it lives, and the next one takes over when they stop. That is
// two small messages a rank and interval, over connections which the control
// plane has anyway.
//
// Knows no clock but what it is told, and no wire; see docs/decisions/0008. The
// times must not count any in which this process did not run: what peers sent
// meanwhile has not been read. Background thread only. Ranks are the job's.
class Heartbeats {
 public:
  using Clock = std::chrono::steady_clock;

  // `limit_s`: the shortest silence that matters; 0: none does, and this rank
  // only answers.
  Heartbeats(int rank, int size, double limit_s, Clock::time_point now);

  // How often Ask wants to be called; nothing: never.
  std::optional<Clock::duration> interval() const { return interval_; }

  // Something came from the peer; an answer: what Ask had it asked for.
  void Heard(int peer, Clock::time_point now);
  void Answered(int peer);
  // The peer has left or failed, and need not answer any more.
  void Ended(int peer);

  // Whom to ask now. Nobody is asked again before the answer has come, so that
  // nothing piles up for a rank that reads nothing.
  std::vector<int> Ask(Clock::time_point now);

  // Whether this rank is the watch, as of the last Ask.
  bool watches() const { return watch_ == rank_; }
  // On the watch: who has not answered it, and for how long.
  std::vector<Silence> Silences(Clock::time_point now) const;
  // Has not answered this rank for longer than a busy machine explains.
  bool IsSilent(int peer, Clock::time_point now) const;
  // Owes this rank no answer.
  bool has_answered(int peer) const { return !peers_[peer].asked.has_value(); }

 private:
  struct Peer {
    bool ended = false;
    Clock::time_point heard;
    std::optional<Clock::time_point> asked;  // and not answered
  };

  void FindWatch(Clock::time_point now);
  Clock::duration SilenceOf(int peer, Clock::time_point now) const;

  const int rank_;
  std::optional<Clock::duration> interval_;
  Clock::duration
      doubt_{};  // a watch that is silent for so long is no more one
  std::vector<Peer> peers_;
  int watch_ = 0;
  Clock::time_point last_ask_;
};

}  // namespace hvd

#endif  // HVD_CORE_HEARTBEATS_H_
