// SPDX-License-Identifier: Apache-2.0
// The C functions that say what this process, its job and this build are, and
// what has come to pass.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "adapter/c_api.h"
#include "adapter/c_guards.h"
#include "adapter/global_runtime.h"
#include "core/comm_stats.h"
#include "core/process_set.h"
#include "core/runtime.h"
#include "core/types.h"

namespace {

// Returns `read(runtime)`, or an HvdNoNumber. Forked processes may read, too.
template <typename Read>
int FromRuntime(Read read) {
  return hvd::Catch(HVD_FAILED, [&]() -> int {
    const std::shared_ptr<hvd::Runtime> runtime = hvd::GetRuntime();
    return runtime == nullptr ? HVD_NOT_INITIALISED : read(*runtime);
  });
}

template <typename Read>
int FromSet(int id, Read read) {
  return FromRuntime([&](const hvd::Runtime& runtime) -> int {
    const hvd::ProcessSetPtr set = runtime.process_set(id);
    return set == nullptr ? HVD_UNKNOWN_PROCESS_SET : read(*set);
  });
}

// Copies what has room in `capacity` bytes with a zero behind it. Returns the
// length of the whole text.
int CopyText(const std::string& text, char* to, int capacity) {
  if (capacity > 0) {
    const size_t length =
        std::min(text.size(), static_cast<size_t>(capacity) - 1);
    std::memcpy(to, text.data(), length);
    to[length] = '\0';
  }
  return static_cast<int>(text.size());
}

}  // namespace

int hvd_rank() {
  return FromRuntime([](const hvd::Runtime& r) { return r.topology().rank; });
}

int hvd_size() {
  return FromRuntime([](const hvd::Runtime& r) { return r.topology().size; });
}

int hvd_local_rank() {
  return FromRuntime(
      [](const hvd::Runtime& r) { return r.topology().local_rank; });
}

int hvd_local_size() {
  return FromRuntime(
      [](const hvd::Runtime& r) { return r.topology().local_size; });
}

int hvd_cross_rank() {
  return FromRuntime(
      [](const hvd::Runtime& r) { return r.topology().cross_rank; });
}

int hvd_cross_size() {
  return FromRuntime(
      [](const hvd::Runtime& r) { return r.topology().cross_size; });
}

int hvd_is_homogeneous() {
  return FromRuntime([](const hvd::Runtime& r) {
    return r.topology().is_homogeneous ? 1 : 0;
  });
}

int hvd_mpi_threads_supported() {
  return FromRuntime(
      [](const hvd::Runtime&) { return hvd::MpiThreadsSupported() ? 1 : 0; });
}

int hvd_process_set_ids(int* ids, int capacity) {
  return FromRuntime([&](const hvd::Runtime& runtime) {
    const auto sets = runtime.process_sets();
    int count = 0;
    for (const auto& [id, set] : *sets) {
      if (count < capacity) ids[count] = id;
      ++count;
    }
    return count;
  });
}

int hvd_has_dynamic_process_sets() {
  return FromRuntime([](const hvd::Runtime& r) {
    return r.options().dynamic_process_sets ? 1 : 0;
  });
}

int hvd_process_set_size(int id) {
  return FromSet(id, [](const hvd::ProcessSet& set) {
    return static_cast<int>(set.ranks.size());
  });
}

int hvd_process_set_rank(int id) {
  return FromSet(id, [](const hvd::ProcessSet& set) {
    return set.rank >= 0 ? set.rank : int{HVD_NOT_A_MEMBER};
  });
}

int hvd_process_set_serial(int id) {
  return FromSet(id, [](const hvd::ProcessSet& set) { return set.serial; });
}

int hvd_process_set_ranks(int id, int* ranks, int capacity) {
  return FromSet(id, [&](const hvd::ProcessSet& set) {
    const int size = static_cast<int>(set.ranks.size());
    std::copy_n(set.ranks.begin(), std::max(0, std::min(size, capacity)),
                ranks);
    return size;
  });
}

int hvd_first_peer_end(int* kind, char* text, int capacity) {
  return FromRuntime([&](const hvd::Runtime& runtime) {
    const std::optional<hvd::PeerEnd> end = runtime.first_peer_end();
    if (!end.has_value()) return -1;
    *kind = static_cast<int>(hvd::KindOf(*end));
    CopyText(end->text, text, capacity);
    return end->rank;
  });
}

int hvd_comm_stats(char* text, int capacity) {
  return FromRuntime([&](const hvd::Runtime& runtime) {
    return CopyText(hvd::ToJson(runtime.counters()), text, capacity);
  });
}

int hvd_mpi_built() { return hvd::MpiBuilt() ? 1 : 0; }
int hvd_cuda_built() { return hvd::CudaBuilt() ? 1 : 0; }
int hvd_has_gpu_lane() {
  return FromRuntime(
      [](const hvd::Runtime& r) { return r.options().gpu_lane ? 1 : 0; });
}

int hvd_reduce_op(const char* name) {
  for (int op = 0; op < hvd::kReduceOpCount; ++op) {
    const char* const known = hvd::Name(static_cast<hvd::ReduceOp>(op));
    if (std::strcmp(known, name) == 0) return op;
  }
  return -1;
}
