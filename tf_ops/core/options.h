// SPDX-License-Identifier: Apache-2.0
// Options: every HVD_* variable that the C++ side reads, parsed once.
#ifndef HVD_CORE_OPTIONS_H_
#define HVD_CORE_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "core/log.h"
#include "core/status.h"
#include "core/types.h"

namespace hvd {

// What an average is divided by while ranks have joined.
enum class JoinAverage : uint8_t {
  kSize = 0,    // the size of the set
  kActive = 1,  // the number of ranks that have not joined
};
inline constexpr uint8_t kJoinAverageCount = 2;

[[nodiscard]] constexpr const char* Name(JoinAverage average) {
  return average == JoinAverage::kSize ? "size" : "active";
}

// Whether NCCL reduces tensors on GPUs.
enum class NcclUse : uint8_t {
  kOff = 0,
  kOn = 1,
  // NCCL is told that ranks are on different GPUs, although they may share one.
  kOnSharedGpus = 2,
};

// Has one field for each knob. The table in options.cc has each knob's name,
// Horovod's name, default, range and one line of documentation.
struct Options {
  int64_t fusion_bytes = 0;
  int64_t bundle_bytes = 0;
  int64_t chunk_bytes = 0;
  bool shm = false;
  int64_t shm_bytes = 0;
  int64_t shm_chunk_bytes = 0;
  int64_t shm_non_temporal = 0;
  int64_t copy_threads = 0;
  int64_t spin_us = 0;
  JoinAverage join_average = JoinAverage::kSize;
  SparseAlgo sparse_algo = SparseAlgo::kAuto;
  bool check_numerics = false;
  bool dynamic_process_sets = false;
  int64_t cache_entries = 0;
  int64_t batches_in_flight = 0;
  bool autotune = false;
  std::string autotune_log;
  int64_t autotune_warmup_samples = 0;
  int64_t autotune_steps_per_sample = 0;
  int64_t autotune_samples = 0;
  double mismatch_warning_s = 0;
  double stall_warning_s = 0;
  double stall_shutdown_s = 0;
  std::string timeline;
  bool timeline_mark_cycles = false;
  LogLevel log_level = LogLevel::kWarning;
  std::string host_id;
  bool gpu_lane = false;
  NcclUse nccl = NcclUse::kOff;
  bool hierarchical_allreduce = false;
  bool async_completion = false;

  // Reads the variables through `get`, which is std::getenv outside tests. It
  // returns null for a variable that is not set. If a value does not parse or
  // is out of range, the error names the variable, the value and what is
  // allowed.
  [[nodiscard]] static Result<Options> Parse(
      const std::function<const char*(const char* name)>& get);

  // The defaults.
  [[nodiscard]] static Options Defaults();
};

}  // namespace hvd

#endif  // HVD_CORE_OPTIONS_H_
