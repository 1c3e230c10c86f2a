// SPDX-License-Identifier: Apache-2.0
// Makes rounds of agreed tensors, samples of rounds, and one choice of samples.
#include "core/control/autotuner.h"

#include <algorithm>
#include <utility>

namespace hvd {
namespace {

// The scheduler's noise would dominate shorter ones.
constexpr std::chrono::milliseconds kShortestSample{20};
// So that a job whose names never come again does not fill the memory.
constexpr size_t kMostNames = 1 << 16;

double Seconds(Autotuner::Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

Autotuner::Autotuner(const Config& config,
                     std::function<void(const Sample&)> report)
    : config_(config),
      report_(std::move(report)),
      search_(config.start, config.most_chunk_bytes, config.most_samples),
      tuning_(config.start) {}

bool Autotuner::EndsRound(const Key& key) const {
  if (firsts_.size() >= kMostNames) return true;
  const auto found = firsts_.find(key.name);
  if (found == firsts_.end()) return false;
  // Another iteration of a loop is another step. But a loop may run several of
  // them at a time, and parts of their speeds say nothing.
  return found->second.instance == key.instance ||
         on_way_.count(found->second.batch) == 0;
}

void Autotuner::Agreed(const Key& key, uint64_t batch, int64_t bytes,
                       Clock::time_point now) {
  if (settled_) return;
  if (EndsRound(key)) EndRound(now);
  firsts_.try_emplace(key.name, First{key.instance, batch});
  on_way_.insert(batch);
  round_bytes_ += bytes;
  if (!busy_since_.has_value()) busy_since_ = now;
}

void Autotuner::Travelled(uint64_t batch, Clock::time_point now) {
  on_way_.erase(batch);
  if (!on_way_.empty() || !busy_since_.has_value()) return;
  round_time_ += now - *busy_since_;
  busy_since_.reset();
}

std::optional<Tuning> Autotuner::TakeChange() {
  return std::exchange(change_, std::nullopt);
}

void Autotuner::EndRound(Clock::time_point now) {
  if (busy_since_.has_value()) {
    round_time_ += now - *busy_since_;
    busy_since_ = now;
  }
  const double seconds = Seconds(round_time_);
  const int64_t bytes = std::exchange(round_bytes_, 0);
  round_time_ = {};
  firsts_.clear();
  if (drops_round_) {
    drops_round_ = false;
    sample_start_ = now;
    return;
  }
  if (bytes > 0 && seconds > 0) {
    rounds_.push_back({bytes, static_cast<double>(bytes) / seconds});
  }
  if (static_cast<int64_t>(rounds_.size()) >= config_.rounds_per_sample &&
      now - sample_start_ >= kShortestSample) {
    EndSample();
  }
}

void Autotuner::EndSample() {
  const bool warms_up = sample_number_ <= config_.warmup_samples;
  const double score = Score();
  report_({warms_up ? Kind::kWarmup : Kind::kSample, sample_number_++, tuning_,
           static_cast<int64_t>(rounds_.size()), score / 1e6});
  rounds_.clear();
  drops_round_ = true;
  if (warms_up) return;
  search_.Report(score);
  if (const std::optional<Tuning> next = search_.Next()) {
    Use(*next);
    return;
  }
  settled_ = true;
  Use(search_.best());
  report_(
      {Kind::kFinal, sample_number_, tuning_, 0, search_.best_score() / 1e6});
}

void Autotuner::Use(const Tuning& tuning) {
  if (tuning != tuning_) change_ = tuning;
  tuning_ = tuning;
}

double Autotuner::Score() {
  std::sort(rounds_.begin(), rounds_.end(), [](const Round& a, const Round& b) {
    return a.bytes_per_s < b.bytes_per_s;
  });
  int64_t bytes = 0;
  for (const Round& round : rounds_) bytes += round.bytes;
  int64_t slower_bytes = 0;
  for (const Round& round : rounds_) {
    slower_bytes += round.bytes;
    if (2 * slower_bytes >= bytes) return round.bytes_per_s;
  }
  return 0;  // not reached: a sample has rounds
}

}  // namespace hvd
