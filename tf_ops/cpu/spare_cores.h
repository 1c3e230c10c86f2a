// SPDX-License-Identifier: Apache-2.0
// SpareCores: whether a rank has cores for more threads than the background
// one.
#ifndef HVD_CPU_SPARE_CORES_H_
#define HVD_CPU_SPARE_CORES_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cpu/work_threads.h"

namespace hvd {

// How many helpers a rank has beside the background thread: threads - 1. If
// `threads` is 0, there is one for every few cores that the rank has. The rank
// shares its `cores` with sharing_ranks - 1 others. A rank with few cores
// leaves them to TensorFlow.
[[nodiscard]] int HelperCount(int64_t threads, int cores, int sharing_ranks);

// The cores that this process may run on, a bit for each. Empty: not known.
[[nodiscard]] std::string UsableCores();
// How many of them the rank can count on, and at least 1. There may be a CPU
// quota of so many: where it is used up, the kernel stops all threads for a
// while, the background thread too.
[[nodiscard]] int CountCores(const std::string& cores,
                             std::optional<int> quota);
// How many of a host's ranks may run on a core that this rank may run on,
// itself among them. `cores` are those of each; empty ones count.
[[nodiscard]] int SharingRanks(const std::vector<std::string>& cores,
                               const std::string& mine);

// One rank has one, for the transports of all its sets. Background thread only.
class SpareCores {
 public:
  // `threads` is HVD_COPY_THREADS. The rest is as in HelperCount.
  SpareCores(int64_t threads, int sharing_ranks);

  // The threads that share the work of a large batch that begins now. Null:
  // there are none, or HVD_COPY_THREADS is 0 and the machine is busy. They
  // start when they are first used.
  WorkThreads* Threads();

 private:
  using Clock = std::chrono::steady_clock;

  bool IsBusy();

  const bool is_fixed_;
  const int helpers_;
  Clock::time_point looked_;
  bool busy_ = true;
  std::unique_ptr<WorkThreads> threads_;
};

}  // namespace hvd

#endif  // HVD_CPU_SPARE_CORES_H_
