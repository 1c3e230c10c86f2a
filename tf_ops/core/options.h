// SPDX-License-Identifier: Apache-2.0
// Options: every HVD_* variable that the C++ side reads, parsed once.
#ifndef HVD_CORE_OPTIONS_H_
#define HVD_CORE_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/status.h"
#include "core/types.h"

namespace hvd {

// Has one field for each knob. The table in options.cc has each knob's name,
// Horovod's name, default, range and one line of documentation.
struct Options {
  int64_t fusion_bytes = 0;
  int64_t chunk_bytes = 0;
  int64_t shm = 0;
  int64_t shm_bytes = 0;
  int64_t shm_chunk_bytes = 0;
  int64_t shm_non_temporal = 0;
  int64_t copy_threads = 0;
  std::string join_average;  // "size" or "active"
  std::string sparse_algo;   // a Name(SparseAlgo)
  int64_t check_numerics = 0;
  int64_t dynamic_process_sets = 0;
  int64_t cache_entries = 0;
  int64_t batches_in_flight = 0;
  int64_t autotune = 0;
  std::string autotune_log;
  int64_t autotune_warmup_samples = 0;
  int64_t autotune_steps_per_sample = 0;
  int64_t autotune_samples = 0;
  double mismatch_warning_s = 0;
  double stall_warning_s = 0;
  double stall_shutdown_s = 0;
  std::string timeline;
  int64_t timeline_mark_cycles = 0;
  int64_t log_level = 0;
  std::string host_id;
  int64_t gpu_lane = 0;
  int64_t nccl = 0;
  int64_t hierarchical_allreduce = 0;
  int64_t async_completion = 0;

  // Reads the variables through `get`, which is std::getenv outside tests. It
  // returns null for a variable that is not set. If a value does not parse or
  // is out of range, the error names the variable, the value and what is
  // allowed.
  [[nodiscard]] static Result<Options> Parse(
      const std::function<const char*(const char* name)>& get);

  // The defaults.
  [[nodiscard]] static Options Defaults();
};

// The algorithm of that name. Nothing: there is none.
[[nodiscard]] std::optional<SparseAlgo> ParseSparseAlgo(
    const std::string& text);

}  // namespace hvd

#endif  // HVD_CORE_OPTIONS_H_
