// SPDX-License-Identifier: Apache-2.0
// The part of BackgroundLoop that watches for peers that keep others waiting.
#include <algorithm>
#include <utility>

#include "core/background_loop.h"
#include "core/log.h"

namespace hvd {

void BackgroundLoop::Watch() {
  last_watch_ = now_;
  stacks_->Look(now_);
  const auto end = first_peer_end();
  if (ended_ || (end.has_value() && end->failed)) return;
  TellWhoIsBack();  // before they are asked again
  for (const int peer : heartbeats_.Ask(awake_)) {
    backend_->channel().Send(peer, Share(Encode({0, Beat{true, false}})));
  }
  bool warned = WatchPeers();
  warned |= WatchSets();
  if (warned) AskForStacks();
}

void BackgroundLoop::TellWhoIsBack() {
  for (int rank = 0; rank < backend_->topology().size; ++rank) {
    double& next_s = next_silence_warning_s_[rank];
    if (next_s <= options_.stall_warning_s) continue;  // it was not missed
    if (!heartbeats_.has_answered(rank)) continue;
    next_s = options_.stall_warning_s;
    Log(LogLevel::kWarning, NamePeer(rank) + " answers again.");
  }
}

bool BackgroundLoop::WatchPeers() {
  const double warning_s = options_.stall_warning_s;
  const double shutdown_s = options_.stall_shutdown_s;
  bool warned = false;
  for (const Silence& silence : heartbeats_.Silences(awake_)) {
    if (shutdown_s > 0 && silence.silent_s >= shutdown_s) {
      GiveUp(silence.rank, SilenceFailure(silence, WaitingNames(), shutdown_s));
      return false;
    }
    double& next_s = next_silence_warning_s_[silence.rank];
    if (warning_s <= 0 || silence.silent_s < next_s) continue;
    next_s = std::max(2 * next_s, silence.silent_s + warning_s);
    Log(LogLevel::kWarning,
        SilenceWarning(silence, NamePeer(silence.rank), WaitingNames()));
    warned = true;
  }
  return warned;
}

bool BackgroundLoop::WatchSets() {
  bool warned = false;
  for (Set& set : sets_) {
    Leader::Watched watched = set.negotiator->Watch(awake_);
    for (const std::string& warning : watched.warnings) {
      Log(LogLevel::kWarning, warning);
    }
    for (Stall& stall : watched.stalls) {
      // WatchPeers has already said all about a silent rank.
      std::vector<int>& missing = stall.missing;
      missing.erase(std::remove_if(missing.begin(), missing.end(),
                                   [this](int rank) {
                                     return heartbeats_.IsSilent(rank, awake_);
                                   }),
                    missing.end());
      if (missing.empty()) continue;
      Log(LogLevel::kWarning, StallWarning(stall, NamePeers(stall.missing)));
      warned = true;
    }
    if (!watched.lost.has_value()) continue;
    std::vector<int> others = watched.lost->missing;
    const int cause = others.front();
    others.erase(others.begin());
    GiveUp(cause, StallFailure(*watched.lost, NamePeers(others),
                               heartbeats_.IsSilent(cause, awake_),
                               options_.stall_shutdown_s));
    return false;
  }
  return warned;
}

void BackgroundLoop::GiveUp(int rank, const std::string& text) {
  Log(LogLevel::kError, NamePeer(rank) + " failed: " + text);
  PeerEndMessage end;
  end.rank = backend_->topology().rank;
  end.failed = end.gave_up = true;
  end.cause_rank = rank;
  end.cause_text = text;
  HandlePeerEnd(end);
  EndSelf(true, text);
}

void BackgroundLoop::AskForStacks() {
  stacks_->Ask(now_);
  const Topology& topology = backend_->topology();
  for (int peer = 0; peer < topology.size; ++peer) {
    // A silent rank that goes on later would write stacks of that later time.
    if (peer == topology.rank || heartbeats_.IsSilent(peer, awake_)) continue;
    backend_->channel().Send(peer, Share(Encode({0, Beat{false, true}})));
  }
}

void BackgroundLoop::HandleBeat(int peer, const Beat& beat) {
  if (beat.wants_stacks) {
    stacks_->Ask(now_);
  } else if (beat.asks) {
    backend_->channel().Send(peer, Share(Encode({0, Beat{}})));
  } else {
    heartbeats_.Answered(peer);
  }
}

std::vector<std::string> BackgroundLoop::WaitingNames() const {
  std::vector<std::string> names;
  for (const Set& set : sets_) {
    set.negotiator->AppendWaiting(&names);
    set.executor->AppendRunning(&names);
  }
  return names;
}

std::string BackgroundLoop::NamePeers(const std::vector<int>& ranks) const {
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + NamePeer(ranks[i]);
  }
  return text;
}

}  // namespace hvd
