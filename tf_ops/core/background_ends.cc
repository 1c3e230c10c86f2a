// SPDX-License-Identifier: Apache-2.0
// The part of BackgroundLoop for what ends of peers and of this rank mean to
// what is pending.
#include <algorithm>
#include <new>
#include <utility>

#include "core/background_loop.h"
#include "core/log.h"

namespace hvd {
namespace {

// How long a rank that leaves serves what is on the wire.
constexpr std::chrono::milliseconds kDrainLimit{5000};

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
  Break(text, true);
  const Status why = PeerLost("this rank failed: " + text);
  for (const Command& command : std::exchange(commands_, {})) {
    std::visit([&](const auto& value) { FailCaller(value, why); }, command);
    const auto* const end = std::get_if<EndCommand>(&command);
    if (end != nullptr && !end->failed) stopping_ = true;
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
  const auto news = ends_.Handle(peer, std::move(ends), now_);
  if (!news.ok()) return news.status();
  for (const PeerEndMessage& end : news.value()) EndPeer(end);
  return Status::Ok();
}

void BackgroundLoop::EndPeer(const PeerEndMessage& end) {
  peer_watch_.Ended(end.rank);
  const Status why = ends_.Note(end, now_);
  for (Set& set : sets_) EndSet(&set, end, why);
  // What has failed just now belongs into the timeline, which may end too.
  timeline_.PeerEnded(end.rank, end.failed, now_);
  if (end.cause_rank >= 0) timeline_.PeerEnded(end.cause_rank, true, now_);
}

void BackgroundLoop::EndSet(Set* set, const PeerEndMessage& end,
                            const Status& why) {
  // What is ready is as good as on the wire. It must be there to be cancelled.
  ExecuteReady(set);
  const auto number = end.log_seen.find(set->process_set.serial);
  if (end.gave_up) {
    // Of batches that are done for their callers GPUs may wait for the rank.
    set->executor->MemberEnded(why, true);
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

void BackgroundLoop::AnswerOverdue() {
  for (Set& set : sets_) {
    if (set.negotiator->has_ended())
      set.negotiator->AnswerAll(ends_.last_why());
  }
}

void BackgroundLoop::Break(const std::string& text, bool lost_track) {
  if (!ends_.is_ending()) Log(LogLevel::kError, text);
  EndSelf({true, text}, lost_track);
}

void BackgroundLoop::EndSelf(const EndCommand& how, bool lost_track) {
  if (has_told_end_) return;
  auto [end, why] = ends_.Begin(how.failed, how.text, how.restarts);
  queue_->Close(why);
  for (Set& set : sets_) {
    uint64_t& last = end.log_seen[set.process_set.serial];
    last = set.negotiator->log_taken();
    if (auto breakdown = set.executor->breakdown()) {
      // Peers must not wait for what this rank did not finish.
      last = std::min(last, breakdown->log_number - 1);
    }
    if (lost_track) last = 0;
    // Peers end as well, and this rank's GPU may wait for theirs.
    if (how.failed) set.executor->MemberEnded(why, true);
    set.negotiator->EndAt(set.negotiator->log_seen(), why);
  }
  timeline_.Leave(how.failed, now_);
  ends_.Tell(std::move(end), now_);
  has_told_end_ = true;
  ends_.Send(now_);
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
        flushing_ || ends_.busy(now_) || timeline_.is_stopping() ||
        std::any_of(sets_.begin(), sets_.end(), [](const Set& s) {
          return s.executor->needed_in_flight() > 0;
        });
    if (!on_wire && !moved) break;
    if (!moved) Wait();
  }
  try {
    FailRest();
  } catch (const std::bad_alloc&) {
    FailRest();
  }
}

void BackgroundLoop::FailRest() {
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
  for (Set& set : sets_) set.executor->Close(why);
  FailSetCallIfEnded();
}

}  // namespace hvd
