// SPDX-License-Identifier: Apache-2.0
// EndRelay: the relay's rounds, and what a rank does whose relay or gatherer is
// gone.
#include "core/end_relay.h"

#include <algorithm>
#include <utility>

namespace hvd {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// A round is a message for every rank: so much time for each keeps the relay's
// share of a core small, whatever the number of ranks.
constexpr microseconds kRoundPerRank{10};
// A relay or a gatherer answers within microseconds if its thread runs at all.
// The rank that waits for its relay gives it the time to miss a gatherer.
constexpr milliseconds kAnswerLimit{200};
constexpr milliseconds kHostLimit{100};
constexpr int kMostAsked = 3;
// How long after the last end a relay that has left itself waits for more.
constexpr milliseconds kStay{50};

}  // namespace

EndRelay::EndRelay(int rank, HostMap hosts)
    : rank_(rank),
      hosts_(std::move(hosts)),
      ended_(hosts_.host.size()),
      left_(static_cast<int>(ended_.size()) - 1) {}

void EndRelay::Leave(PeerEndMessage end, bool at_once, Clock::time_point now) {
  // A rank that others have given up passes nothing on.
  if (end.gave_up) Gone(end.cause_rank);
  own_ = std::move(end);
  at_once_ = at_once;
  ask_next_ = now;
}

std::vector<PeerEndMessage> EndRelay::Handle(int peer, PeerEnds ends,
                                             Clock::time_point now) {
  if (ends.pass_on == PassOn::kToHost) {
    for_host_.push_back({peer, ends.round, ends.ends});
  }
  std::vector<PeerEndMessage> news;
  for (PeerEndMessage& end : ends.ends) {
    if (end.rank == rank_) {
      own_.reset();  // it came back
      continue;
    }
    // What else it tells of is somebody's end that others pass on.
    if (ends.pass_on == PassOn::kToJob && end.rank == peer) {
      round_.push_back(end);
    }
    if (end.gave_up) Gone(end.cause_rank);
    if (!Gone(end.rank)) continue;
    if (stays_until_.has_value()) stays_until_ = now + kStay;
    if (!first_end_.has_value()) first_end_ = end;
    news.push_back(std::move(end));
  }
  return news;
}

void EndRelay::Handle(int peer, const HostTold& told) {
  for (auto round = unanswered_.begin(); round != unanswered_.end(); ++round) {
    if (round->number != told.round) continue;
    std::vector<int>& gatherers = round->gatherers;
    gatherers.erase(std::remove(gatherers.begin(), gatherers.end(), peer),
                    gatherers.end());
    if (gatherers.empty()) unanswered_.erase(round);
    return;
  }
}

bool EndRelay::Gone(int peer) {
  if (peer < 0 || peer == rank_ || ended_[peer]) return false;
  ended_[peer] = true;
  --left_;
  return true;
}

std::vector<EndRelay::Outgoing> EndRelay::Take(Clock::time_point now) {
  std::vector<Outgoing> out;
  if (!for_host_.empty()) TellOwnHost(&out);
  if (own_.has_value() && now >= ask_next_) Tell(now, &out);
  if (!round_.empty() && now >= next_round_) {
    next_round_ = now + kRoundPerRank * ended_.size();
    TellAll(std::exchange(round_, {}), now, &out);
  }
  if (!unanswered_.empty()) TellDirectly(now, &out);
  return out;
}

SharedBytes EndRelay::Bytes(PassOn pass_on, uint64_t round,
                            std::vector<PeerEndMessage> ends) const {
  const bool has_first =
      !first_end_.has_value() ||
      std::any_of(ends.begin(), ends.end(), [this](const auto& end) {
        return end.rank == first_end_->rank;
      });
  if (!has_first) ends.insert(ends.begin(), *first_end_);
  return Share(Encode({0, PeerEnds{pass_on, round, std::move(ends)}}));
}

void EndRelay::TellOwnHost(std::vector<Outgoing>* out) {
  const std::vector<int> others = OthersOf(hosts_.host[rank_], rank_);
  for (const ForHost& told : std::exchange(for_host_, {})) {
    if (!others.empty()) {
      out->push_back({others, Bytes(PassOn::kToNobody, 0, told.ends)});
    }
    out->push_back({{told.from}, Share(Encode({0, HostTold{told.round}}))});
  }
}

void EndRelay::Tell(Clock::time_point now, std::vector<Outgoing>* out) {
  const int relay = LowestLeft();
  // With one other rank left there is nobody else to tell.
  if (at_once_ || left_ <= 1 || relay == rank_ || asked_ == kMostAsked) {
    TellAll({*own_}, now, out);
    own_.reset();
    if (relay == rank_ && left_ > 0) stays_until_ = now + kStay;
    return;
  }
  ++asked_;
  ask_next_ = now + kAnswerLimit;
  out->push_back({{relay}, Bytes(PassOn::kToJob, 0, {*own_})});
}

void EndRelay::TellAll(std::vector<PeerEndMessage> ends, Clock::time_point now,
                       std::vector<Outgoing>* out) {
  std::vector<int> directly, gatherers;
  for (int host = 0; host < hosts_.host_count(); ++host) {
    const std::vector<int>& ranks = hosts_.ranks[host];
    const bool is_own = host == hosts_.host[rank_];
    const int gatherer =
        is_own || ranks.size() == 1 ? -1 : GathererOf(host, ends);
    if (gatherer >= 0) {
      gatherers.push_back(gatherer);
      continue;
    }
    const std::vector<int> others = OthersOf(host, rank_);
    directly.insert(directly.end(), others.begin(), others.end());
  }
  const SharedBytes bytes = Bytes(PassOn::kToNobody, 0, ends);
  if (!directly.empty()) out->push_back({std::move(directly), bytes});
  if (gatherers.empty()) return;
  const uint64_t number = ++last_number_;
  out->push_back({gatherers, Bytes(PassOn::kToHost, number, ends)});
  unanswered_.push_back(
      {number, std::move(gatherers), bytes, now + kHostLimit});
}

void EndRelay::TellDirectly(Clock::time_point now, std::vector<Outgoing>* out) {
  // The oldest comes first.
  while (!unanswered_.empty() && now >= unanswered_.front().due) {
    const Round& round = unanswered_.front();
    for (const int gatherer : round.gatherers) {
      out->push_back({OthersOf(hosts_.host[gatherer], gatherer), round.bytes});
    }
    unanswered_.erase(unanswered_.begin());
  }
}

bool EndRelay::busy(Clock::time_point now) const {
  return own_.has_value() || !round_.empty() || !for_host_.empty() ||
         !unanswered_.empty() ||
         (stays_until_.has_value() && left_ > 0 && now < *stays_until_);
}

std::vector<int> EndRelay::OthersOf(int host, int rank) const {
  std::vector<int> others = hosts_.ranks[host];
  others.erase(std::remove(others.begin(), others.end(), rank), others.end());
  return others;
}

int EndRelay::GathererOf(int host,
                         const std::vector<PeerEndMessage>& ends) const {
  for (const int rank : hosts_.ranks[host]) {
    const bool waits = std::any_of(ends.begin(), ends.end(),
                                   [&](auto& end) { return end.rank == rank; });
    if (!ended_[rank] || waits) return rank;
  }
  return -1;
}

int EndRelay::LowestLeft() const {
  const auto left = std::find(ended_.begin(), ended_.end(), false);
  return static_cast<int>(left - ended_.begin());
}

}  // namespace hvd
