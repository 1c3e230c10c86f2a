// SPDX-License-Identifier: Apache-2.0
// Keeps who was asked and heard, and finds the rank that follows a silent
// watch.
#include "core/heartbeats.h"

#include <algorithm>

namespace hvd {
namespace {

using std::chrono::duration;
using std::chrono::duration_cast;

// A question comes once in this part of the limit, but at least this often. An
// idle rank wakes up once a second anyway.
constexpr double kLimitPart = 1.0 / 8;
constexpr double kLongestInterval_s = 1;
constexpr int kIntervalsUntilDoubt = 3;

}  // namespace

Heartbeats::Heartbeats(int rank, int size, double limit_s,
                       Clock::time_point now)
    : rank_(rank), peers_(size), last_ask_(now) {
  for (Peer& peer : peers_) peer.heard = now;
  if (limit_s <= 0 || size < 2) return;
  interval_ = duration_cast<Clock::duration>(
      duration<double>(std::min(limit_s * kLimitPart, kLongestInterval_s)));
  doubt_ = kIntervalsUntilDoubt * *interval_;
}

void Heartbeats::Heard(int peer, Clock::time_point now) {
  peers_[peer].heard = now;
}

void Heartbeats::Answered(int peer) { peers_[peer].asked.reset(); }

void Heartbeats::Ended(int peer) { peers_[peer].ended = true; }

void Heartbeats::FindWatch(Clock::time_point now) {
  watch_ = 0;
  while (watch_ != rank_ &&
         (peers_[watch_].ended || now - peers_[watch_].heard >= doubt_)) {
    ++watch_;
  }
  if (watch_ == rank_) return;
  // These have no reason to write to this rank. Their time begins when the
  // watch before them falls silent.
  for (size_t peer = watch_ + 1; peer < peers_.size(); ++peer) {
    peers_[peer].heard = now;
  }
}

std::vector<int> Heartbeats::Ask(Clock::time_point now) {
  std::vector<int> asked;
  if (!interval_.has_value()) return asked;
  FindWatch(now);
  if (!watches() || now - last_ask_ < *interval_) return asked;
  last_ask_ = now;
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    if (peer == rank_ || peers_[peer].ended || peers_[peer].asked.has_value()) {
      continue;
    }
    peers_[peer].asked = now;
    asked.push_back(peer);
  }
  return asked;
}

Heartbeats::Clock::duration Heartbeats::SilenceOf(int peer,
                                                  Clock::time_point now) const {
  const Peer& p = peers_[peer];
  if (p.ended || !p.asked.has_value()) return {};
  return now - std::max(*p.asked, p.heard);
}

std::vector<Silence> Heartbeats::Silences(Clock::time_point now) const {
  std::vector<Silence> silences;
  if (!watches()) return silences;
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    const duration<double> silent = SilenceOf(peer, now);
    if (silent.count() > 0) silences.push_back({peer, silent.count()});
  }
  return silences;
}

bool Heartbeats::IsSilent(int peer, Clock::time_point now) const {
  return interval_.has_value() && SilenceOf(peer, now) >= doubt_;
}

}  // namespace hvd
