// SPDX-License-Identifier: Apache-2.0
// Ends: which ranks of the job have ended, this one among them, and what that
// is in words.
#ifndef HVD_CORE_ENDS_H_
#define HVD_CORE_ENDS_H_

#include <chrono>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/control/ended_scopes.h"
#include "core/control/message.h"
#include "core/end_relay.h"
#include "core/peer_end.h"
#include "core/peer_names.h"

namespace hvd {

// Knows no process set: what an end means to those is its owner's to apply. It
// sends by the relay what others must hear.
//
// Owner: the background loop. Background thread only, unless it says otherwise.
// Ranks are ranks of the job.
class Ends {
 public:
  using Clock = std::chrono::steady_clock;
  // The end of a rank, and what fails because of it.
  using Noted = std::pair<PeerEndMessage, Status>;

  // Sends by `channel`, which must outlive it.
  Ends(const Topology& topology, Channel* channel);

  // --- Of peers ---
  // A message has come. Returns the ends in it that are news, to be noted. Not
  // Ok: it makes no sense.
  Result<std::vector<PeerEndMessage>> Handle(int peer, PeerEnds ends,
                                             Clock::time_point now);
  void Handle(int peer, const HostTold& told) { relay_.Handle(peer, told); }
  // Returns what fails because of it.
  Status Note(const PeerEndMessage& end, Clock::time_point now);
  // Every one that was noted, for sets that begin later.
  const std::vector<Noted>& of_peers() const { return of_peers_; }
  // What fails because of the last one. Ok: no peer has ended.
  const Status& last_why() const { return last_why_; }
  // True once, a while after the last one: what waits for the rest of a log
  // whose member has ended waits no longer.
  bool TakeOverdue(Clock::time_point now) {
    if (!overdue_at_.has_value() || now < *overdue_at_) return false;
    overdue_at_.reset();
    return true;
  }

  // --- Of this rank ---
  // A training loop has ended here, of tensors with that prefix. An empty text
  // takes it back, and so does the next tensor of the loop. A peer that misses
  // this rank after it has left must learn why. The leader who knew may be the
  // one that left.
  void EndScope(std::string name_prefix, std::string text);
  void Submitted(const std::string& name) {
    if (scope_prefix_.empty() || !ScopeCovers(scope_prefix_, name)) return;
    ForgetScope();
  }

  // This rank begins to end. Called once, and again if memory ran out before
  // Tell. Returns what peers are to be told, but for log_seen, and what fails
  // here because of it.
  Noted Begin(bool failed, std::string text, bool restarts);
  // From now on peers are told.
  void Tell(PeerEndMessage end, Clock::time_point now);
  // Begin was called.
  bool is_ending() const { return is_ending_; }
  // Begin was called, or a peer has failed.
  bool is_job_ending() const;

  // --- Messages ---
  // True if anything was sent.
  bool Send(Clock::time_point now);
  // See EndRelay.
  bool busy(Clock::time_point now) const { return relay_.busy(now); }

  // --- Any thread ---
  // Fulfilled once a failure of this rank has reached each host. To be asked
  // for once.
  std::future<void> failure_announced() {
    return failure_announced_.get_future();
  }
  // The first peer that failed. Else the first that left, else the first that
  // starts again.
  std::optional<PeerEnd> first_peer() const;
  // The last peer that was heard of to start again. -1: none was.
  int restarting_peer() const;

 private:
  void ForgetScope();

  const int rank_;
  const int size_;
  const PeerNames names_;
  Channel* const channel_;
  EndRelay relay_;

  std::vector<Noted> of_peers_;
  Status last_why_;
  std::optional<Clock::time_point> overdue_at_;

  bool is_ending_ = false;
  bool announces_ = false;  // it failed, and failure_announced_ still waits
  std::promise<void> failure_announced_;
  // The last loop that has ended and that nobody has begun again.
  std::string scope_prefix_;
  std::string scope_text_;

  mutable std::mutex mutex_;  // of what follows
  std::optional<PeerEnd> first_peer_;
  int restarting_peer_ = -1;
};

}  // namespace hvd

#endif  // HVD_CORE_ENDS_H_
