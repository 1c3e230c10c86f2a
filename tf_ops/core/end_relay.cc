// SPDX-License-Identifier: Apache-2.0
// EndRelay: the relay's rounds, and what a rank does whose relay is gone.
#include "core/end_relay.h"

#include <algorithm>

namespace hvd {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// A round is a message to every rank: so much time for each keeps the relay's
// share of a core small, whatever the number of ranks.
constexpr microseconds kRoundPerRank{10};
// A relay answers within microseconds if its thread runs at all.
constexpr milliseconds kAnswerLimit{200};
constexpr int kMostAsked = 3;
// How long after the last end a relay that has left itself waits for more.
constexpr milliseconds kStay{50};

SharedBytes Bytes(std::vector<PeerEndMessage> ends, bool pass_on) {
  return Share(Encode({0, PeerEnds{pass_on, std::move(ends)}}));
}

}  // namespace

EndRelay::EndRelay(int rank, int size)
    : rank_(rank), ended_(size), left_(size - 1) {}

void EndRelay::Leave(PeerEndMessage end, bool at_once, Clock::time_point now) {
  own_ = std::move(end);
  at_once_ = at_once;
  ask_next_ = now;
}

std::vector<PeerEndMessage> EndRelay::Handle(PeerEnds ends,
                                             Clock::time_point now) {
  std::vector<PeerEndMessage> news;
  for (PeerEndMessage& end : ends.ends) {
    if (end.rank == rank_) {
      own_.reset();  // it came back
      continue;
    }
    if (ends.pass_on) round_.push_back(end);
    // A rank that others have given up passes nothing on.
    if (end.gave_up) Gone(end.cause_rank);
    if (!Gone(end.rank)) continue;
    if (stays_until_.has_value()) stays_until_ = now + kStay;
    news.push_back(std::move(end));
  }
  return news;
}

bool EndRelay::Gone(int peer) {
  if (peer < 0 || peer == rank_ || ended_[peer]) return false;
  ended_[peer] = true;
  --left_;
  return true;
}

std::vector<EndRelay::Outgoing> EndRelay::Take(Clock::time_point now) {
  std::vector<Outgoing> out;
  if (own_.has_value() && now >= ask_next_) Tell(now, &out);
  if (!round_.empty() && now >= next_round_) {
    next_round_ = now + kRoundPerRank * ended_.size();
    out.push_back({Others(), Bytes(std::exchange(round_, {}), false)});
  }
  return out;
}

void EndRelay::Tell(Clock::time_point now, std::vector<Outgoing>* out) {
  const int relay = LowestLeft();
  // With one other rank left there is nobody else to tell.
  if (at_once_ || left_ <= 1 || relay == rank_ || asked_ == kMostAsked) {
    out->push_back({Others(), Bytes({*own_}, false)});
    own_.reset();
    if (relay == rank_ && left_ > 0) stays_until_ = now + kStay;
    return;
  }
  ++asked_;
  ask_next_ = now + kAnswerLimit;
  out->push_back({{relay}, Bytes({*own_}, true)});
}

bool EndRelay::busy(Clock::time_point now) const {
  return own_.has_value() || !round_.empty() ||
         (stays_until_.has_value() && left_ > 0 && now < *stays_until_);
}

std::vector<int> EndRelay::Others() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(ended_.size()); ++rank) {
    if (rank != rank_) ranks.push_back(rank);
  }
  return ranks;
}

int EndRelay::LowestLeft() const {
  const auto left = std::find(ended_.begin(), ended_.end(), false);
  return static_cast<int>(left - ended_.begin());
}

}  // namespace hvd
