// SPDX-License-Identifier: Apache-2.0
// The part of BackgroundLoop that gives up peers that keep others waiting.
#include "core/background_loop.h"
#include "core/log.h"

namespace hvd {
namespace {

// A rank whose GPU has failed stays so long. The peers' batches then end with
// the words of its end, and not of data that does not come.
constexpr std::chrono::milliseconds kUntilPeersKnow{1000};

}  // namespace

void BackgroundLoop::Watch() {
  last_watch_ = now_;
  EndWithGpu();
  peer_watch_.LookAtStacks(now_);
  if (ends_.is_job_ending()) return;
  peer_watch_.AskPeers(awake_);
  bool warned = WatchPeers();
  warned |= WatchSets();
  warned |= WatchGpus();
  if (warned) peer_watch_.AskForStacks(now_, awake_);
}

bool BackgroundLoop::WatchPeers() {
  const PeerWatch::Finding finding =
      peer_watch_.LookAtPeers(awake_, [this] { return WaitingNames(); });
  if (finding.lost.has_value()) GiveUp(*finding.lost);
  return finding.warned;
}

bool BackgroundLoop::WatchSets() {
  bool warned = false;
  for (Set& set : sets_) {
    const PeerWatch::Finding finding =
        peer_watch_.LookAtSet(set.negotiator->Watch(awake_), awake_);
    if (finding.lost.has_value()) {
      GiveUp(*finding.lost);
      return false;
    }
    warned |= finding.warned;
  }
  return warned;
}

bool BackgroundLoop::WatchGpus() {
  if (device_lanes_ == nullptr || ends_.is_ending()) return false;
  GpuWatch::Sets sets;
  for (Set& set : sets_)
    sets.emplace_back(set.process_set.serial, set.executor.get());
  const GpuWatch::Finding finding = gpu_watch_.Look(sets, awake_);
  if (finding.failure.has_value()) {
    // Peers must not wait for them.
    for (const GpuWatch::Batch& batch : finding.batches) {
      batch.executor->BreakDown(batch.on_gpu, Internal(*finding.failure));
    }
    Break(*finding.failure);
    gpu_deadline_ = now_ + kUntilPeersKnow;
    gpu_failure_ = *finding.failure;
    return false;
  }
  for (const std::string& warning : finding.warnings) {
    Log(LogLevel::kWarning, warning);
  }
  return !finding.warnings.empty();
}

void BackgroundLoop::EndWithGpu() {
  if (!gpu_deadline_.has_value() || now_ < *gpu_deadline_) return;
  gpu_deadline_.reset();
  const Status why = PeerLost("this rank failed: " + gpu_failure_);
  for (Set& set : sets_) set.executor->CancelAfter(0, why);
}

void BackgroundLoop::GiveUp(const PeerWatch::Lost& lost) {
  Log(LogLevel::kError, names_.Of(lost.rank) + " failed: " + lost.text);
  PeerEndMessage end;
  end.rank = backend_->topology().rank;
  end.failed = end.gave_up = true;
  end.cause_rank = lost.rank;
  end.cause_text = lost.text;
  EndPeer(end);
  EndSelf({true, lost.text});
}

std::vector<std::string> BackgroundLoop::WaitingNames() const {
  std::vector<std::string> names;
  if (set_call_ != nullptr) names.push_back(NameCall(set_call_->request));
  for (const Set& set : sets_) {
    set.negotiator->AppendWaiting(&names);
    set.executor->AppendRunning(&names);
  }
  return names;
}

}  // namespace hvd
