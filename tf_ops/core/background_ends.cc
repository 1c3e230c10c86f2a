// SPDX-License-Identifier: Apache-2.0
// The part of BackgroundLoop for ends: of peers, of this rank, and of what is
// pending.
#include <algorithm>
#include <new>
#include <utility>

#include "core/background_loop.h"
#include "core/log.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

// How long a rank that leaves serves what is on the wire, and how long a set
// waits for the rest of its log after a member has ended.
constexpr milliseconds kDrainLimit{5000};
constexpr milliseconds kLogEndLimit{1000};

// A failure says more than a rank that left because of it. One rank that is
// gone for good keeps all others from starting again.
int WeightOf(const PeerEnd& end) {
  return end.failed ? 2 : end.restarts ? 0 : 1;
}

// A command that was applied has no entry and no call any more.
void FailCaller(const EnqueueCommand& command, const Status& why) {
  if (command.entry != nullptr) command.entry->done(why);
}
void FailCaller(const JoinCommand& command, const Status& why) {
  if (command.call != nullptr) command.call->done(why, -1);
}
void FailCaller(const ChangeSetsCommand& command, const Status& why) {
  if (command.call != nullptr) command.call->done(why);
}
// Nobody waits for these.
void FailCaller(const CancelCommand&, const Status&) {}
void FailCaller(const AbortStepCommand&, const Status&) {}
void FailCaller(const EndScopeCommand&, const Status&) {}
void FailCaller(const EndCommand&, const Status&) {}
// Runtime::StopTimeline waits for a limited time.
void FailCaller(const TimelineCommand&, const Status&) {}

}  // namespace

bool BackgroundLoop::PassOrBreak() {
  try {
    return Pass();
  } catch (const std::bad_alloc&) {
    RunOutOfMemory();
    return true;
  }
}

void BackgroundLoop::RunOutOfMemory() {
  const std::string text =
      "its background thread ran out of memory; give the rank more, or fewer "
      "and smaller tensors at a time";
  lost_track_ = true;
  Break(text);
  const Status why = PeerLost("this rank failed: " + text);
  for (const Command& command : std::exchange(commands_, {})) {
    std::visit([&](const auto& value) { FailCaller(value, why); }, command);
  }
  for (Set& set : sets_) {
    FailReady(&set, why);
    set.negotiator->FailAll(why);
    set.executor->CancelAfter(0, why);
  }
}

void BackgroundLoop::FailReady(Set* set, const Status& why) {
  while (const std::optional<ReadyItem> item = set->negotiator->TakeReady()) {
    const auto* batch = std::get_if<ReadyBatch>(&*item);
    if (batch == nullptr) continue;
    for (const Outstanding& tensor : batch->tensors) {
      if (!tensor.cancelled) tensor.entry->done(why);
    }
  }
}

Status BackgroundLoop::HandleEnds(int peer, PeerEnds ends) {
  for (const PeerEndMessage& end : ends.ends) {
    const int last = std::max(end.rank, end.cause_rank);
    if (last >= backend_->topology().size) {
      return Internal("it tells of the end of rank " + std::to_string(last) +
                      ".");
    }
  }
  const auto news = end_relay_.Handle(peer, std::move(ends), now_);
  for (const PeerEndMessage& end : news) HandlePeerEnd(end);
  return Status::Ok();
}

bool BackgroundLoop::SendEnds() {
  const auto messages = end_relay_.Take(now_);
  for (const EndRelay::Outgoing& message : messages) {
    for (const int rank : message.ranks) {
      channel_.Send(rank, message.bytes);
    }
  }
  if (announces_ && end_relay_.hosts_are_told()) {
    announces_ = false;
    failure_announced_.set_value();
  }
  return !messages.empty();
}

void BackgroundLoop::HandlePeerEnd(const PeerEndMessage& end) {
  peer_watch_.Ended(end.rank);
  PeerEnd first{end.rank, end.failed, end.text, false, end.restarts};
  if (end.cause_rank >= 0) {
    first = {end.cause_rank, true, end.cause_text, end.gave_up};
  }
  end_status_ =
      PeerLost(names_.Of(first.rank) +
                   (first.failed ? " failed: " : " has left: ") + first.text,
               CauseOf(first));
  {
    std::lock_guard<std::mutex> lock(peer_end_mutex_);
    if (!first_peer_end_.has_value() ||
        WeightOf(first) > WeightOf(*first_peer_end_)) {
      first_peer_end_ = first;
    }
    if (end.restarts) restarting_peer_ = end.rank;
  }
  for (Set& set : sets_) EndSet(&set, end, end_status_);
  // What has failed just now belongs into the timeline, which may end too.
  timeline_.PeerEnded(end.rank, end.failed, now_);
  if (end.cause_rank >= 0) timeline_.PeerEnded(end.cause_rank, true, now_);
  peer_ends_.emplace_back(end, end_status_);
  end_deadline_ = now_ + kLogEndLimit;
}

void BackgroundLoop::EndSet(Set* set, const PeerEndMessage& end,
                            const Status& why) {
  // What is ready is as good as on the wire. It must be there to be cancelled.
  ExecuteReady(set);
  const auto number = end.log_seen.find(set->process_set.serial);
  if (end.gave_up) {
    set->negotiator->FailAll(why);
    set->executor->CancelAfter(0, why);
    return;
  }
  if (number != end.log_seen.end()) {
    set->executor->MemberEnded(why, end.failed);
    set->negotiator->EndAt(number->second, why);
    set->executor->CancelAfter(number->second, why);
    return;
  }
  if (end.failed) {
    // The peer is not a member, but the job is going to be aborted.
    set->negotiator->FailAll(why);
    return;
  }
  const std::vector<int>& ranks = set->process_set.ranks;
  if (std::find(ranks.begin(), ranks.end(), end.rank) == ranks.end()) return;
  // A member without the set. Either it had left the wire of a removed set, or
  // it has ended before the set began.
  const auto global = end.log_seen.find(0);
  const bool had_it =
      global != end.log_seen.end() && global->second >= set->begun_at;
  if (!had_it) set->negotiator->EndAt(0, why);
}

void BackgroundLoop::Break(const std::string& text) {
  if (!ended_) Log(LogLevel::kError, text);
  EndSelf(true, text);
}

void BackgroundLoop::EndSelf(bool failed, const std::string& text,
                             bool restarts) {
  if (ended_) return;
  ended_ = true;
  const auto first = first_peer_end();
  const bool gave_up = first.has_value() && first->gave_up;
  const Status why =
      gave_up  ? end_status_
      : failed ? PeerLost("this rank failed: " + text)
               : PeerLost("hvd_tf was shut down on this rank (" + text + ").");
  queue_->Close(why);
  PeerEndMessage end;
  end.rank = backend_->topology().rank;
  end.failed = failed;
  end.text = text;
  end.restarts = restarts;
  if (first.has_value() && first->failed) {
    end.cause_rank = first->rank;
    end.cause_text = first->text;
    end.gave_up = first->gave_up;
  }
  for (Set& set : sets_) {
    uint64_t& last = end.log_seen[set.process_set.serial];
    last = set.negotiator->log_taken();
    if (auto breakdown = set.executor->breakdown()) {
      // Peers must not wait for what this rank did not finish.
      last = std::min(last, breakdown->log_number - 1);
    }
    if (lost_track_) last = 0;
    set.negotiator->EndAt(set.negotiator->log_seen(), why);
  }
  timeline_.Leave(failed, now_);
  end_relay_.Leave(std::move(end), failed, now_);
  announces_ = failed;
  SendEnds();
  flushing_ = channel_.Flush();
}

void BackgroundLoop::Drain() {
  const Clock::time_point limit = Clock::now() + kDrainLimit;
  // Four things are still handled: commands that were pushed before the queue
  // was closed, aborted steps, failures that peers announce, and batches that
  // all have agreed on.
  while (Clock::now() < limit) {
    const bool moved = PassOrBreak();
    if (moved) last_moved_ = now_;
    const bool on_wire =
        flushing_ || end_relay_.busy(now_) || timeline_.is_stopping() ||
        std::any_of(sets_.begin(), sets_.end(), [](const Set& s) {
          return s.executor->needed_in_flight() > 0;
        });
    if (!on_wire && !moved) break;
    if (!moved) Wait();
  }
  const Status why = PeerLost("hvd_tf was shut down on this rank.");
  for (Set& set : sets_) {
    set.negotiator->FailAll(why);
    set.executor->CancelAfter(0, why);
    try {
      set.executor->Progress();
    } catch (const std::bad_alloc&) {
      // What it would have ended is abandoned.
    }
    set.executor->Abandon(why);
  }
  FailSetCallIfEnded();
}

std::optional<PeerEnd> BackgroundLoop::first_peer_end() const {
  std::lock_guard<std::mutex> lock(peer_end_mutex_);
  return first_peer_end_;
}

int BackgroundLoop::restarting_peer() const {
  std::lock_guard<std::mutex> lock(peer_end_mutex_);
  return restarting_peer_;
}

}  // namespace hvd
