// SPDX-License-Identifier: Apache-2.0
// The table of knobs: name, Horovod's name, default, range, documentation.
#include "core/options.h"

#include <strings.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <variant>

#include "core/decimal.h"

namespace hvd {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

struct Knob {
  const char* name;
  const char* alias;  // Horovod's name for it; null: none
  std::variant<bool Options::*, int64_t Options::*, double Options::*,
               std::string Options::*, JoinAverage Options::*,
               SparseAlgo Options::*, LogLevel Options::*, NcclUse Options::*>
      field;
  const char* fallback;
  double lowest;
  double highest;
  const char* doc;
};

// One entry for each knob. docs/knobs.md has the same table for users.
const Knob kKnobs[] = {
    {"HVD_FUSION_BYTES", "HOROVOD_FUSION_THRESHOLD", &Options::fusion_bytes,
     "134217728", 0, 1e15, "bytes of tensors that travel as one batch at most"},
    {"HVD_BUNDLE_BYTES", nullptr, &Options::bundle_bytes, "16384", 0, 1e9,
     "allreduces of so many bytes and less share kernels of a graph; 0: none"},
    {"HVD_CHUNK_BYTES", nullptr, &Options::chunk_bytes, "1048576", 1024, 1e9,
     "bytes that a batch is cut into on a wire without shared memory"},
    {"HVD_SHM", nullptr, &Options::shm, "1", 0, 1,
     "1: ranks of one host talk through memory that they share"},
    {"HVD_SHM_BYTES", nullptr, &Options::shm_bytes, "8388608", 65536, 1e12,
     "bytes of shared memory for the data of each rank on its way"},
    {"HVD_SHM_CHUNK_BYTES", nullptr, &Options::shm_chunk_bytes, "262144", 1024,
     1e9, "bytes that a batch is cut into in shared memory"},
    {"HVD_SHM_NON_TEMPORAL", nullptr, &Options::shm_non_temporal, "-1", -1, 1,
     "1: what peers read is written past the cache; 0: never; -1: as measured"},
    {"HVD_COPY_THREADS", nullptr, &Options::copy_threads, "0", 0, 64,
     "threads of a rank that copy and add large batches; 0: by idle cores"},
    {"HVD_SPIN_US", nullptr, &Options::spin_us, "0", 0, 1e6,
     "microseconds that a rank spins for peers before it sleeps; 0: by kernel"},
    {"HVD_JOIN_AVERAGE", nullptr, &Options::join_average, "size", 0, 0,
     "what an average is divided by while ranks have joined"},
    {"HVD_SPARSE_ALGO", nullptr, &Options::sparse_algo, "auto", 0, 0,
     "how rows of tf.IndexedSlices travel"},
    {"HVD_CHECK_NUMERICS", nullptr, &Options::check_numerics, "0", 0, 1,
     "1: a NaN or an infinity in what a rank sends fails the step on all "
     "ranks"},
    {"HVD_DYNAMIC_PROCESS_SETS", "HOROVOD_DYNAMIC_PROCESS_SETS",
     &Options::dynamic_process_sets, "0", 0, 1,
     "1: process sets may be added and removed after hvd.init()"},
    {"HVD_CACHE_ENTRIES", "HOROVOD_CACHE_CAPACITY", &Options::cache_entries,
     "4096", 0, 1e9, "agreed tensors remembered by a small number"},
    {"HVD_BATCHES_IN_FLIGHT", nullptr, &Options::batches_in_flight, "4", 1, 32,
     "batches on the wire before further tensors are held to be fused"},
    {"HVD_AUTOTUNE", "HOROVOD_AUTOTUNE", &Options::autotune, "0", 0, 1,
     "1: the first steps find the best fusion, chunks and batches in flight"},
    {"HVD_AUTOTUNE_LOG", "HOROVOD_AUTOTUNE_LOG", &Options::autotune_log, "", 0,
     0, "the CSV file that rank 0 writes what autotune measures to"},
    {"HVD_AUTOTUNE_WARMUP_SAMPLES", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
     &Options::autotune_warmup_samples, "1", 0, 1e6,
     "samples of autotune that do not count"},
    {"HVD_AUTOTUNE_STEPS_PER_SAMPLE", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
     &Options::autotune_steps_per_sample, "5", 1, 1e6,
     "training steps that a sample of autotune takes at least"},
    {"HVD_AUTOTUNE_SAMPLES", "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
     &Options::autotune_samples, "40", 1, 1e6,
     "samples after which autotune settles at the latest"},
    {"HVD_MISMATCH_WARNING_S", nullptr, &Options::mismatch_warning_s, "3", 0,
     kNoLimit, "seconds of silence before unmatched names are reported"},
    {"HVD_STALL_WARNING_S", "HOROVOD_STALL_CHECK_TIME_SECONDS",
     &Options::stall_warning_s, "60", 0, kNoLimit,
     "seconds a rank keeps others waiting, or silent, before it is named"},
    {"HVD_STALL_SHUTDOWN_S", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
     &Options::stall_shutdown_s, "0", 0, kNoLimit,
     "seconds of the same after which the job fails; 0: it never does"},
    {"HVD_TIMELINE", "HOROVOD_TIMELINE", &Options::timeline, "", 0, 0,
     "the Chrome trace that rank 0 writes of all ranks; DYNAMIC is no file"},
    {"HVD_TIMELINE_MARK_CYCLES", "HOROVOD_TIMELINE_MARK_CYCLES",
     &Options::timeline_mark_cycles, "0", 0, 1,
     "1: the timeline shows when a rank takes what was enqueued"},
    {"HVD_LOG_LEVEL", "HOROVOD_LOG_LEVEL", &Options::log_level, "2", 0, 3,
     "0 debug, 1 info, 2 warning, 3 error, or one of these words"},
    {"HVD_HOST_ID", nullptr, &Options::host_id, "", 0, 0,
     "ranks with equal ids share a host, whatever the machine says"},
    {"HVD_GPU_LANE", nullptr, &Options::gpu_lane, "1", 0, 1,
     "0: TensorFlow copies tensors of a GPU to the host, and back"},
    {"HVD_NCCL", nullptr, &Options::nccl, "1", 0, 2,
     "0: tensors on GPUs are reduced in host memory; 2: ranks may share a GPU"},
    {"HVD_HIERARCHICAL_ALLREDUCE", "HOROVOD_HIERARCHICAL_ALLREDUCE",
     &Options::hierarchical_allreduce, "0", 0, 1,
     "1: on GPUs NCCL works within hosts only; sums go between them by MPI"},
    {"HVD_ASYNC_COMPLETION", "HOROVOD_ENABLE_ASYNC_COMPLETION",
     &Options::async_completion, "0", 0, 1,
     "1: TensorFlow goes on when NCCL has a batch, and its GPU waits for it"},
};

constexpr char kStallCheckDisable[] = "HOROVOD_STALL_CHECK_DISABLE";

// Each takes the whole text. False: it is not a value of the knob.
bool ParseValue(const Knob& knob, const char* text, int64_t* value) {
  char* end = nullptr;
  errno = 0;
  *value = std::strtoll(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0') return false;
  const auto number = static_cast<double>(*value);
  return number >= knob.lowest && number <= knob.highest;
}

bool ParseValue(const Knob& knob, const char* text, double* value) {
  const std::optional<double> decimal = ParseDecimal(text);
  if (!decimal.has_value()) return false;
  *value = *decimal;
  return *value >= knob.lowest && *value <= knob.highest;
}

bool ParseValue(const Knob&, const char* text, std::string* value) {
  *value = text;
  return true;
}

// A whole number in the knob's range, as a value of another type.
template <typename T>
bool ParseNumber(const Knob& knob, const char* text, T* value) {
  int64_t number = 0;
  if (!ParseValue(knob, text, &number)) return false;
  *value = static_cast<T>(number);
  return true;
}

bool ParseValue(const Knob& knob, const char* text, bool* value) {
  return ParseNumber(knob, text, value);
}

bool ParseValue(const Knob& knob, const char* text, NcclUse* value) {
  return ParseNumber(knob, text, value);
}

// Horovod's words for levels count, too: as the level that is nearest.
bool ParseValue(const Knob& knob, const char* text, LogLevel* value) {
  const std::pair<const char*, LogLevel> words[] = {
      {"trace", LogLevel::kDebug}, {"debug", LogLevel::kDebug},
      {"info", LogLevel::kInfo},   {"warning", LogLevel::kWarning},
      {"error", LogLevel::kError}, {"fatal", LogLevel::kError}};
  for (const auto& [word, level] : words) {
    if (strcasecmp(text, word) != 0) continue;
    *value = level;
    return true;
  }
  return ParseNumber(knob, text, value);
}

// One of the names of the values below `end`.
template <typename T>
bool ParseName(const char* text, uint8_t end, T* value) {
  for (uint8_t number = 0; number < end; ++number) {
    *value = static_cast<T>(number);
    if (std::strcmp(text, Name(*value)) == 0) return true;
  }
  return false;
}

bool ParseValue(const Knob&, const char* text, JoinAverage* value) {
  return ParseName(text, kJoinAverageCount, value);
}

bool ParseValue(const Knob&, const char* text, SparseAlgo* value) {
  return ParseName(text, kSparseAlgoCount, value);
}

// Such as "a, b or c".
template <typename T>
std::string NamesBelow(uint8_t end) {
  std::string text = Name(T{});
  for (uint8_t number = 1; number < end; ++number) {
    text += number + 1 == end ? " or " : ", ";
    text += Name(static_cast<T>(number));
  }
  return text;
}

std::string Expected(const Knob& knob) {
  if (std::holds_alternative<JoinAverage Options::*>(knob.field)) {
    return NamesBelow<JoinAverage>(kJoinAverageCount);
  }
  if (std::holds_alternative<SparseAlgo Options::*>(knob.field)) {
    return NamesBelow<SparseAlgo>(kSparseAlgoCount);
  }
  if (std::holds_alternative<LogLevel Options::*>(knob.field)) {
    return "debug, info, warning, error or a whole number from 0 to 3";
  }
  std::string text = std::holds_alternative<double Options::*>(knob.field)
                         ? "a number"
                         : "a whole number";
  text += " of at least " + std::to_string(static_cast<int64_t>(knob.lowest));
  if (knob.highest < kNoLimit) {
    text +=
        " and at most " + std::to_string(static_cast<int64_t>(knob.highest));
  }
  return text;
}

}  // namespace

Result<Options> Options::Parse(
    const std::function<const char*(const char*)>& get) {
  Options options;
  // Templates of job managers leave variables empty that nobody has set.
  const auto given = [&get](const char* name) {
    const char* text = get(name);
    return text != nullptr && *text != '\0' ? text : nullptr;
  };
  for (const Knob& knob : kKnobs) {
    const char* name = knob.name;
    const char* text = given(knob.name);
    if (text == nullptr && knob.alias != nullptr) {
      name = knob.alias;
      text = given(knob.alias);
    }
    if (text == nullptr) text = knob.fallback;
    const bool is_valid = std::visit(
        [&](auto field) { return ParseValue(knob, text, &(options.*field)); },
        knob.field);
    if (!is_valid) {
      return InvalidArgument(std::string(name) + "='" + text + "' (" +
                             knob.doc + "): must be " + Expected(knob) + ".");
    }
  }
  // Horovod's switch turns both limits off. Ours go before it.
  const char* switch_text = given(kStallCheckDisable);
  if (switch_text != nullptr && std::strtol(switch_text, nullptr, 10) > 0) {
    if (given("HVD_STALL_WARNING_S") == nullptr) options.stall_warning_s = 0;
    if (given("HVD_STALL_SHUTDOWN_S") == nullptr) options.stall_shutdown_s = 0;
  }
  // A user who asks for an early end still gets the warning before it.
  if (options.stall_shutdown_s > 0 &&
      options.stall_shutdown_s <= options.stall_warning_s) {
    options.stall_warning_s = options.stall_shutdown_s / 2;
  }
  return options;
}

Options Options::Defaults() {
  return Parse([](const char*) { return nullptr; }).value();
}

}  // namespace hvd
