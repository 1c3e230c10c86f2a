// SPDX-License-Identifier: Apache-2.0
// Ends: weighs the ends of peers, and finds the words.
#include "core/ends.h"

#include <algorithm>

#include "core/host_map.h"

namespace hvd {
namespace {

// How long a set waits for the rest of its log after a member has ended.
constexpr std::chrono::milliseconds kLogEndLimit{1000};

// A failure says more than a rank that left because of it. One rank that is
// gone for good keeps all others from starting again.
int WeightOf(const PeerEnd& end) {
  return end.failed ? 2 : end.restarts ? 0 : 1;
}

}  // namespace

Ends::Ends(const Topology& topology, Channel* channel)
    : rank_(topology.rank),
      size_(topology.size),
      names_(topology.hosts),
      channel_(channel),
      relay_(topology.rank, MakeHostMap(topology.host_of)) {}

Result<std::vector<PeerEndMessage>> Ends::Handle(int peer, PeerEnds ends,
                                                 Clock::time_point now) {
  for (const PeerEndMessage& end : ends.ends) {
    const int last = std::max(end.rank, end.cause_rank);
    if (last >= size_) {
      return Internal("it tells of the end of rank " + std::to_string(last) +
                      ".");
    }
  }
  return relay_.Handle(peer, std::move(ends), now);
}

Status Ends::Note(const PeerEndMessage& end, Clock::time_point now) {
  PeerEnd first{end.rank, end.failed, end.text, false, end.restarts};
  if (end.cause_rank >= 0) {
    first = {end.cause_rank, true, end.cause_text, end.gave_up};
  }
  last_why_ =
      PeerLost(names_.Of(first.rank) +
                   (first.failed ? " failed: " : " has left: ") + first.text,
               CauseOf(first));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!first_peer_.has_value() || WeightOf(first) > WeightOf(*first_peer_)) {
      first_peer_ = first;
    }
    if (end.restarts) restarting_peer_ = end.rank;
  }
  of_peers_.emplace_back(end, last_why_);
  overdue_at_ = now + kLogEndLimit;
  return last_why_;
}

void Ends::EndScope(std::string name_prefix, std::string text) {
  if (!text.empty()) {
    scope_prefix_ = std::move(name_prefix);
    scope_text_ = std::move(text);
  } else if (name_prefix == scope_prefix_) {
    ForgetScope();
  }
}

void Ends::ForgetScope() {
  scope_prefix_.clear();
  scope_text_.clear();
}

Ends::Noted Ends::Begin(bool failed, std::string text, bool restarts) {
  is_ending_ = true;
  if (!failed && !scope_text_.empty()) text += ". Earlier: " + scope_text_;
  const auto first = first_peer();
  const bool gave_up = first.has_value() && first->gave_up;
  const Status why =
      gave_up  ? last_why_
      : failed ? PeerLost("this rank failed: " + text)
               : PeerLost("hvd_tf was shut down on this rank (" + text + ").");
  PeerEndMessage end;
  end.rank = rank_;
  end.failed = failed;
  end.text = std::move(text);
  end.restarts = restarts;
  if (first.has_value() && first->failed) {
    end.cause_rank = first->rank;
    end.cause_text = first->text;
    end.gave_up = first->gave_up;
  }
  return {std::move(end), why};
}

void Ends::Tell(PeerEndMessage end, Clock::time_point now) {
  announces_ = end.failed;
  relay_.Leave(std::move(end), announces_, now);
}

bool Ends::is_job_ending() const {
  if (is_ending_) return true;
  const auto first = first_peer();
  return first.has_value() && first->failed;
}

bool Ends::Send(Clock::time_point now) {
  const auto messages = relay_.Take(now);
  for (const EndRelay::Outgoing& message : messages) {
    for (const int rank : message.ranks) channel_->Send(rank, message.bytes);
  }
  if (announces_ && relay_.hosts_are_told()) {
    announces_ = false;
    failure_announced_.set_value();
  }
  return !messages.empty();
}

std::optional<PeerEnd> Ends::first_peer() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return first_peer_;
}

int Ends::restarting_peer() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return restarting_peer_;
}

}  // namespace hvd
