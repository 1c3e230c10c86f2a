// SPDX-License-Identifier: Apache-2.0
// Autotuner: measures a running job and settles on the values that suit it.
#ifndef HVD_CORE_AUTOTUNER_H_
#define HVD_CORE_AUTOTUNER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_set>
#include <vector>

#include "core/request.h"
#include "core/tuning.h"
#include "core/tuning_search.h"

namespace hvd {

// Is told what the leader agrees on and when all of it has travelled. A round
// is what is agreed until a name comes again: a training step. Its speed is its
// bytes over the time in which something of it was on its way; what the ranks
// compute meanwhile does not count. A sample is several rounds under the same
// values, and its score is the median of their speeds by bytes, so that the
// small rounds of a metric between steps count little.
//
// Knows no clock but what it is told, and no wire. Owner and thread: the
// leader of the global process set.
class Autotuner {
 public:
  using Clock = std::chrono::steady_clock;

  struct Config {
    Tuning start;
    int64_t most_piece_bytes = 0;
    int64_t warmup_samples = 0;     // measured under `start` and dropped
    int64_t rounds_per_sample = 1;  // at least, and until 20 ms have passed
    int64_t most_samples = 1;       // beside the warm-up
  };

  enum class Kind { kWarmup, kSample, kFinal };
  struct Sample {
    Kind kind = Kind::kSample;
    int64_t number = 0;   // from 1
    Tuning tuning;        // kFinal: what the job goes on with
    int64_t rounds = 0;   // kFinal: 0
    double mb_per_s = 0;  // 10^6 bytes; kFinal: of what `tuning` was chosen by
  };

  // `report` is called with every sample as it ends, kFinal last.
  Autotuner(const Config& config, std::function<void(const Sample&)> report);

  // A tensor was agreed on at `now`.
  void Agreed(const Key& key, int64_t bytes, Clock::time_point now);
  // Nothing that was agreed on is on its way any more, seen at `now`.
  void Idle(Clock::time_point now);

  // What is to hold from here on, if that has changed: told once.
  std::optional<Tuning> TakeChange();
  // Nothing changes any more.
  bool settled() const { return settled_; }

 private:
  struct Round {
    int64_t bytes = 0;
    double bytes_per_s = 0;
  };

  void EndRound(Clock::time_point now);
  void EndSample();
  void Use(const Tuning& tuning);
  // Median of the rounds' speeds, each as often as it has bytes.
  double Score();

  const Config config_;
  const std::function<void(const Sample&)> report_;
  TuningSearch search_;
  Tuning tuning_;  // in use
  std::optional<Tuning> change_;
  bool settled_ = false;
  int64_t sample_number_ = 1;

  std::unordered_set<Key, KeyHash> names_;  // of the round
  int64_t round_bytes_ = 0;
  Clock::duration round_time_{};  // on its way, but for what `busy_since_` adds
  std::optional<Clock::time_point> busy_since_;

  // The first round under new values still has the last ones' in it.
  bool drops_round_ = true;
  Clock::time_point sample_start_;
  std::vector<Round> rounds_;
};

}  // namespace hvd

#endif  // HVD_CORE_AUTOTUNER_H_
