// SPDX-License-Identifier: Apache-2.0
// Autotuner: measures a running job and settles on the values that suit it.
#ifndef HVD_CORE_CONTROL_AUTOTUNER_H_
#define HVD_CORE_CONTROL_AUTOTUNER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/control/tuning_search.h"
#include "core/request.h"
#include "core/tuning.h"

namespace hvd {

// The Trace tells it which tensors are agreed on, and when all of them have
// travelled.
//
// - A round is what is agreed until a name comes again. That is a training
//   step. Of a loop in a graph it is an iteration, or the iterations that are
//   on their way together. Its speed is its bytes over the time in which some
//   of them were on their way. Time in which the ranks only compute does not
//   count.
// - A sample is several rounds under the same values. Its score is the median
//   of their speeds, weighted by bytes. So the small rounds of a metric between
//   steps count little.
//
// Reads no clock and knows no wire. Owner: the BackgroundLoop of the rank that
// leads the global process set. It tells the leader of new values.
class Autotuner {
 public:
  using Clock = std::chrono::steady_clock;

  struct Config {
    Tuning start;
    int64_t most_chunk_bytes = 0;
    int64_t warmup_samples = 0;     // measured under `start` and dropped
    int64_t rounds_per_sample = 1;  // at least, and for 20 ms
    int64_t most_samples = 1;       // besides the warm-up
  };

  enum class Kind { kWarmup, kSample, kFinal };
  struct Sample {
    Kind kind = Kind::kSample;
    int64_t number = 0;   // from 1
    Tuning tuning;        // kFinal: what the job goes on with
    int64_t rounds = 0;   // kFinal: 0
    double mb_per_s = 0;  // 10^6 bytes; kFinal: of the chosen values
  };

  // `report` is called with every sample as it ends, kFinal last.
  Autotuner(const Config& config, std::function<void(const Sample&)> report);

  // A tensor was agreed on at `now`. It travels in `batch`.
  void Agreed(const Key& key, uint64_t batch, int64_t bytes,
              Clock::time_point now);
  // At `now`, that batch was not on its way any more.
  void Travelled(uint64_t batch, Clock::time_point now);

  // The values to use from now on, if they have changed. Returned once.
  std::optional<Tuning> TakeChange();
  // Nothing changes any more.
  bool settled() const { return settled_; }

 private:
  struct Round {
    int64_t bytes = 0;
    double bytes_per_s = 0;
  };

  // Whether a tensor of that key is the first of another round.
  bool EndsRound(const Key& key) const;
  void EndRound(Clock::time_point now);
  void EndSample();
  void Use(const Tuning& tuning);
  // The median of the rounds' speeds, weighted by bytes.
  double Score();

  const Config config_;
  const std::function<void(const Sample&)> report_;
  TuningSearch search_;
  Tuning tuning_;  // in use
  std::optional<Tuning> change_;
  bool settled_ = false;
  int64_t sample_number_ = 1;

  struct First {
    uint64_t instance = 0;
    uint64_t batch = 0;
  };
  std::unordered_map<std::string, First> firsts_;  // of the round, by name
  std::unordered_set<uint64_t> on_way_;            // batches
  int64_t round_bytes_ = 0;
  Clock::duration round_time_{};  // on its way, before `busy_since_`
  std::optional<Clock::time_point> busy_since_;

  // Set for the first round under new values, which began under the old ones.
  bool drops_round_ = true;
  Clock::time_point sample_start_;
  std::vector<Round> rounds_;
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_AUTOTUNER_H_
