// SPDX-License-Identifier: Apache-2.0
// Starts and stops traces, sends chunks, asks for other hosts' clocks.
#include "core/timeline.h"

#include <algorithm>
#include <utility>

#include "core/batch_times.h"
#include "core/timeline_writer.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kInterval{250};
// For batches that are still on their way when a timeline ends, and for ranks
// that do not come by.
constexpr milliseconds kCloseLimit{500};
constexpr milliseconds kStopLimit{1000};
constexpr int kMostUnreceipted = 2;

}  // namespace

Timeline::Timeline(const Topology& topology, Channel* channel,
                   CommCounters* counters)
    : topology_(topology),
      channel_(channel),
      trace_(counters),
      clocks_(1 + *std::max_element(topology.host_of.begin(),
                                    topology.host_of.end())) {
  if (!leads()) return;
  traced_ = TracedRanks(topology);
  traced_.erase(traced_.begin());  // this one
  std::set<int> hosts{topology.host_of[0]};
  for (const int rank : traced_) {
    if (hosts.insert(topology.host_of[rank]).second) {
      hosts_firsts_.push_back(rank);
    }
  }
}

void Timeline::Start(std::shared_ptr<TimelineFile> file, bool mark_cycles,
                     Time now) {
  if (stopping_.has_value()) EndStop();
  file_ = std::move(file);
  ++number_;
  clocks_ = ClockOffsets(1 + *std::max_element(topology_.host_of.begin(),
                                               topology_.host_of.end()));
  Tell({number_, true, mark_cycles});
  awaited_ = {traced_.begin(), traced_.end()};
  for (const int rank : ended_) awaited_.erase(rank);
  trace_.Start(mark_cycles);
  next_due_ = now + kInterval;
  AskClocks();
}

void Timeline::StartWithJob(bool mark_cycles) {
  const std::vector<int> traced = TracedRanks(topology_);
  const bool is_traced =
      std::find(traced.begin(), traced.end(), topology_.rank) != traced.end();
  if (leads() || !is_traced) return;
  number_ = 1;
  unreceipted_ = 0;
  trace_.Start(mark_cycles);
  next_due_ = std::chrono::steady_clock::now() + kInterval;
}

void Timeline::Stop(std::function<void()> stopped, Time now) {
  if (file_ == nullptr || stopping_.has_value()) {
    stopped();
    return;
  }
  Tell({number_, false, false});
  BeginStop(std::move(stopped), kStopLimit, now);
}

void Timeline::BeginStop(std::function<void()> stopped, milliseconds limit,
                         Time now) {
  trace_.Close();
  stopping_ = Stopping{std::move(stopped), now + limit};
}

void Timeline::EndStop() {
  SendChunk(true);
  trace_.Stop();
  if (file_ != nullptr) SetUnsettledClocks();
  file_ = nullptr;
  const Stopping stopping = *std::exchange(stopping_, std::nullopt);
  if (stopping.stopped) stopping.stopped();
}

void Timeline::Leave(bool failed, Time now) {
  if (failed) {
    // The process may end at any moment.
    if (trace_.on()) SendChunk(true);
    if (!leads()) trace_.Stop();
  } else if (trace_.on() && !stopping_.has_value()) {
    BeginStop(nullptr, leads() ? kStopLimit : kCloseLimit, now);
  }
}

void Timeline::PeerEnded(int rank, bool failed, Time now) {
  ended_.insert(rank);
  if (failed) awaited_.erase(rank);
  if (rank == 0 && !failed && trace_.on() && !stopping_.has_value()) {
    BeginStop(nullptr, kCloseLimit, now);
  }
  // What comes next may be the end of this process.
  next_due_ = {};
}

Status Timeline::Handle(int peer, const TimelineControl& control, Time now) {
  if (peer != 0 || leads()) {
    return Internal("only rank 0 starts and stops timelines.");
  }
  if (control.is_on) {
    if (trace_.on() && control.number == number_) return Status::Ok();
    if (stopping_.has_value()) EndStop();
    number_ = control.number;
    unreceipted_ = 0;
    trace_.Start(control.mark_cycles);
    next_due_ = now + kInterval;
  } else if (trace_.on() && !stopping_.has_value()) {
    BeginStop(nullptr, kCloseLimit, now);
  }
  return Status::Ok();
}

Status Timeline::Handle(int peer, TimelineChunk chunk) {
  if (!leads()) return Internal("events came to a rank other than rank 0.");
  if (!chunk.is_last && ended_.count(peer) == 0) {
    channel_->Send(peer, Share(Encode({0, TimelineReceipt{chunk.number}})));
  }
  // The chunk is part of an earlier timeline, or comes too late.
  if (file_ == nullptr || chunk.number != number_) return Status::Ok();
  if (!chunk.events.empty()) file_->Add(peer, std::move(chunk.events));
  if (chunk.is_last) awaited_.erase(peer);
  return Status::Ok();
}

Status Timeline::Handle(int peer, const TimelineReceipt& receipt) {
  if (receipt.number != number_ && !leads() && peer == 0) return Status::Ok();
  if (leads() || peer != 0 || unreceipted_ == 0) {
    return Internal("rank " + std::to_string(peer) +
                    " has got no events of this rank.");
  }
  --unreceipted_;
  return Status::Ok();
}

void Timeline::HandleAnswer(int peer, const Beat& beat) {
  if (beat.asks || beat.asked_ns == 0) return;
  asked_.erase(peer);
  if (file_ == nullptr) return;
  const int host = topology_.host_of[peer];
  if (host == topology_.host_of[0]) return;
  const auto better =
      clocks_.Answered(host, beat.asked_ns, beat.clock_ns, SteadyNow_ns());
  if (better.has_value()) file_->SetClock(host, *better);
  if (!clocks_.is_settled(host)) AskClock(peer);
}

void Timeline::Look(Time now) {
  if (stopping_.has_value()) {
    const bool is_complete = trace_.is_complete() && awaited_.empty();
    if (is_complete || now >= stopping_->limit) EndStop();
  }
  if (now < next_due_) return;
  next_due_ = now + kInterval;
  if (trace_.on()) SendChunk(false);
  if (file_ != nullptr) AskClocks();
}

std::optional<std::chrono::steady_clock::duration> Timeline::UntilDue(
    Time now) const {
  const bool asks = file_ != nullptr && !hosts_firsts_.empty();
  const bool sends = trace_.on() && trace_.has_news();
  if (stopping_.has_value()) {
    return std::max<std::chrono::steady_clock::duration>(stopping_->limit - now,
                                                         {});
  }
  if (!asks && !sends) return std::nullopt;
  return std::max<std::chrono::steady_clock::duration>(next_due_ - now, {});
}

void Timeline::Tell(const TimelineControl& control) {
  const SharedBytes bytes = Share(Encode({0, control}));
  for (const int rank : traced_) {
    if (ended_.count(rank) == 0) channel_->Send(rank, bytes);
  }
}

void Timeline::SendChunk(bool is_last) {
  if (!leads() && !is_last && unreceipted_ >= kMostUnreceipted) return;
  std::string events;
  if (trace_.has_news()) events = trace_.Take();
  if (leads()) {
    if (!events.empty()) file_->Add(0, std::move(events));
  } else if (is_last || !events.empty()) {
    if (!is_last) ++unreceipted_;
    TimelineChunk chunk{number_, is_last, std::move(events)};
    channel_->Send(0, Share(Encode({0, std::move(chunk)})));
  }
}

void Timeline::AskClocks() {
  for (const int rank : hosts_firsts_) AskClock(rank);
}

void Timeline::AskClock(int rank) {
  // Nothing is to pile up for a rank that reads nothing.
  if (ended_.count(rank) > 0 || !asked_.insert(rank).second) return;
  channel_->Send(rank,
                 Share(Encode({0, Beat{true, false, SteadyNow_ns(), 0}})));
}

void Timeline::SetUnsettledClocks() {
  for (const int rank : hosts_firsts_) {
    const int host = topology_.host_of[rank];
    const auto best = clocks_.Best(host);
    if (best.has_value() && !clocks_.is_settled(host)) {
      file_->SetClock(host, *best);
    }
  }
}

}  // namespace hvd
