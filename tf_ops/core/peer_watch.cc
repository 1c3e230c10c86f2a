// SPDX-License-Identifier: Apache-2.0
// Asks, answers, and warns with growing gaps.
#include "core/peer_watch.h"

#include <algorithm>
#include <utility>

#include "core/batch_times.h"
#include "core/control/stall.h"
#include "core/log.h"

namespace hvd {
namespace {

constexpr std::chrono::milliseconds kInterval{250};

// In seconds. 0: no silence matters. The warning comes before the shutdown.
double ShortestSilence(const Options& options) {
  return options.stall_warning_s > 0 ? options.stall_warning_s
                                     : options.stall_shutdown_s;
}

}  // namespace

PeerWatch::PeerWatch(Backend* backend, Channel* channel, const Options& options,
                     std::shared_ptr<StackRequests> stacks,
                     Clock::time_point awake)
    : backend_(backend),
      channel_(channel),
      options_(options),
      names_(backend->topology().hosts),
      stacks_(std::move(stacks)),
      heartbeats_(backend->topology().rank, backend->topology().size,
                  ShortestSilence(options), awake),
      next_silence_warning_s_(backend->topology().size,
                              options.stall_warning_s) {
  interval_ = std::min<Clock::duration>(
      kInterval, heartbeats_.interval().value_or(kInterval));
}

void PeerWatch::Handle(int peer, const Beat& beat, Clock::time_point now) {
  if (beat.wants_stacks) {
    stacks_->Ask(now);
  } else if (beat.asks) {
    const int64_t clock_ns = beat.asked_ns == 0 ? 0 : SteadyNow_ns();
    Send(peer, Beat{false, false, beat.asked_ns, clock_ns});
  } else {
    heartbeats_.Answered(peer);
  }
}

void PeerWatch::AskPeers(Clock::time_point awake) {
  TellWhoIsBack();  // before they are asked again
  for (const int peer : heartbeats_.Ask(awake)) Send(peer, Beat{true, false});
}

void PeerWatch::TellWhoIsBack() {
  for (int rank = 0; rank < backend_->topology().size; ++rank) {
    double& next_s = next_silence_warning_s_[rank];
    if (next_s <= options_.stall_warning_s) continue;  // it was not missed
    if (!heartbeats_.has_answered(rank)) continue;
    next_s = options_.stall_warning_s;
    Log(LogLevel::kWarning, names_.Of(rank) + " answers again.");
  }
}

PeerWatch::Finding PeerWatch::LookAtPeers(Clock::time_point awake,
                                          const WaitingNames& waiting_names) {
  const double warning_s = options_.stall_warning_s;
  const double shutdown_s = options_.stall_shutdown_s;
  bool warned = false;
  for (const Silence& silence : heartbeats_.Silences(awake)) {
    if (shutdown_s > 0 && silence.silent_s >= shutdown_s) {
      return {false, Lost{silence.rank, SilenceFailure(silence, waiting_names(),
                                                       shutdown_s)}};
    }
    double& next_s = next_silence_warning_s_[silence.rank];
    if (warning_s <= 0 || silence.silent_s < next_s) continue;
    next_s = std::max(2 * next_s, silence.silent_s + warning_s);
    Log(LogLevel::kWarning,
        SilenceWarning(silence, names_.Of(silence.rank), waiting_names()));
    warned = true;
  }
  return {warned, std::nullopt};
}

PeerWatch::Finding PeerWatch::LookAtSet(Watched watched,
                                        Clock::time_point awake) {
  bool warned = false;
  for (const std::string& warning : watched.warnings) {
    Log(LogLevel::kWarning, warning);
  }
  for (Stall& stall : watched.stalls) {
    KeepThoseThatAnswer(&stall, awake);
    if (stall.missing.empty()) continue;
    Log(LogLevel::kWarning, StallWarning(stall, names_.Of(stall.missing)));
    warned = true;
  }
  if (!watched.lost.has_value()) return {warned, std::nullopt};
  std::vector<int> others = watched.lost->missing;
  const int cause = others.front();
  others.erase(others.begin());
  return {false, Lost{cause, StallFailure(*watched.lost, names_.Of(others),
                                          heartbeats_.IsSilent(cause, awake),
                                          options_.stall_shutdown_s)}};
}

void PeerWatch::KeepThoseThatAnswer(Stall* stall,
                                    Clock::time_point awake) const {
  std::vector<int> kept;
  for (size_t i = 0; i < stall->missing.size(); ++i) {
    const int rank = stall->missing[i];
    const int reporter = stall->reporters.empty() ? rank : stall->reporters[i];
    if (heartbeats_.IsSilent(rank, awake)) continue;
    if (heartbeats_.IsSilent(reporter, awake)) continue;
    kept.push_back(rank);
  }
  stall->missing = std::move(kept);
}

void PeerWatch::AskForStacks(Clock::time_point now, Clock::time_point awake) {
  stacks_->Ask(now);
  const Topology& topology = backend_->topology();
  for (int peer = 0; peer < topology.size; ++peer) {
    // A silent rank that goes on later would write stacks of that later time.
    if (peer == topology.rank || heartbeats_.IsSilent(peer, awake)) continue;
    Send(peer, Beat{false, true});
  }
}

void PeerWatch::Send(int peer, const Beat& beat) {
  channel_->Send(peer, Share(Encode({0, beat})));
}

}  // namespace hvd
