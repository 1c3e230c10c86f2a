// SPDX-License-Identifier: Apache-2.0
// SpareCores: whether a rank has cores for more threads than the background
// one.
#ifndef HVD_CPU_SPARE_CORES_H_
#define HVD_CPU_SPARE_CORES_H_

#include <chrono>
#include <cstdint>
#include <memory>

#include "cpu/work_threads.h"

namespace hvd {

// How many helpers a rank has beside the background thread: threads - 1. If
// `threads` is 0, there is one for every few cores that the rank has. The rank
// shares its `cores` with local_ranks - 1 others. A rank with few cores leaves
// them to TensorFlow.
[[nodiscard]] int HelperCount(int64_t threads, int cores, int local_ranks);

// The number of cores that this process may run on.
[[nodiscard]] int UsableCores();

// One rank has one, for the transports of all its sets. Background thread only.
class SpareCores {
 public:
  // `threads` is HVD_COPY_THREADS.
  SpareCores(int64_t threads, int local_ranks);

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
