// SPDX-License-Identifier: Apache-2.0
// GpuWatch: warns of batches that a GPU does not come to, and says when this
// rank must be given up because of that.
#ifndef HVD_CORE_GPU_WATCH_H_
#define HVD_CORE_GPU_WATCH_H_

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/control/stall.h"
#include "core/executor.h"
#include "core/options.h"

namespace hvd {

// All ranks have asked for these batches, so no leader misses anybody. Each
// rank knows what its own GPU has not done, and speaks of itself only. GPUs
// that wait for another one look alike. So they get half as much time again,
// and mostly the rank of that one has spoken by then.
//
// A batch that is behind another in which GPUs wait for each other is not
// looked at: the framework may compute its inputs behind that.
//
// Owner: the background loop. Background thread only. `awake`: see PeerWatch.
class GpuWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // `name` is this rank's and its host's.
  GpuWatch(const Options& options, std::string name);

  struct Batch {
    Executor* executor;
    Executor::OnGpu on_gpu;
    double waited_s;
  };
  struct Finding {
    std::vector<std::string> warnings;
    // Set: nothing else counts, and these batches are not going to end.
    std::optional<std::string> failure;
    std::vector<Batch> batches;
  };
  // Executors by the serial numbers of their sets.
  using Sets = std::vector<std::pair<int, Executor*>>;
  Finding Look(const Sets& sets, Clock::time_point awake);

 private:
  using Key = std::tuple<int, const Transport*, BatchId>;

  // The batches that GPUs have, the oldest first.
  std::vector<Batch> Find(const Sets& sets, Clock::time_point awake);
  static void Add(const Batch& batch, Stall* stall);
  // Whether the next warning is due.
  bool IsDue(const Stall& stall, double factor, double* next_s) const;

  const Options options_;
  const std::string name_;
  std::map<Key, Clock::time_point> since_;  // a look first found them
  // How long batches must have waited until the next warning: about this rank's
  // GPU, and about several GPUs together.
  double next_own_s_, next_among_s_;
};

}  // namespace hvd

#endif  // HVD_CORE_GPU_WATCH_H_
