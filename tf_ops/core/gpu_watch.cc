// SPDX-License-Identifier: Apache-2.0
// Looks at batches that have been with GPUs for long.
#include "core/gpu_watch.h"

#include <algorithm>
#include <utility>

namespace hvd {
namespace {

// For GPUs that wait for each other.
constexpr double kLonger = 1.5;

}  // namespace

GpuWatch::GpuWatch(const Options& options, std::string name)
    : options_(options),
      name_(std::move(name)),
      next_own_s_(options.stall_warning_s),
      next_among_s_(options.stall_warning_s) {}

std::vector<GpuWatch::Batch> GpuWatch::Find(const Sets& sets,
                                            Clock::time_point awake) {
  std::vector<Batch> batches;
  std::map<Key, Clock::time_point> since;
  for (const auto& [serial, executor] : sets) {
    for (const Executor::OnGpu& on_gpu : executor->on_gpus()) {
      const Key key(serial, on_gpu.lane, on_gpu.id);
      const auto known = since_.find(key);
      since[key] = known == since_.end() ? awake : known->second;
      const std::chrono::duration<double> waited = awake - since[key];
      batches.push_back({executor, on_gpu, waited.count()});
    }
  }
  since_ = std::move(since);
  std::stable_sort(
      batches.begin(), batches.end(),
      [](const Batch& a, const Batch& b) { return a.waited_s > b.waited_s; });
  return batches;
}

void GpuWatch::Add(const Batch& batch, Stall* stall) {
  stall->waited_s = std::max(stall->waited_s, batch.waited_s);
  for (std::string& name : batch.executor->NamesOf(batch.on_gpu)) {
    stall->names.push_back(std::move(name));
  }
}

bool GpuWatch::IsDue(const Stall& stall, double factor, double* next_s) const {
  const double first_s = options_.stall_warning_s;
  if (stall.waited_s <= 0) *next_s = first_s;
  if (first_s <= 0 || stall.waited_s < *next_s * factor) return false;
  *next_s = std::max(2 * *next_s, stall.waited_s / factor + first_s);
  return true;
}

GpuWatch::Finding GpuWatch::Look(const Sets& sets, Clock::time_point awake) {
  const double warning_s = options_.stall_warning_s;
  const double shutdown_s = options_.stall_shutdown_s;
  const double least_s = warning_s > 0 ? warning_s : shutdown_s;
  Finding finding;
  if (least_s <= 0) return finding;
  Stall own, among;
  std::vector<Batch> of_own;
  for (const Batch& batch : Find(sets, awake)) {
    if (batch.waited_s < least_s) break;
    finding.batches.push_back(batch);
    if (batch.on_gpu.lane->waits_for_own_gpu(batch.on_gpu.id)) {
      of_own.push_back(batch);
    } else {
      Add(batch, &among);
    }
  }
  for (const Batch& batch : of_own) {
    // Those that one look found may have come in any order.
    if (batch.waited_s > among.waited_s) Add(batch, &own);
  }
  for (const bool is_own : {true, false}) {
    const Stall& stall = is_own ? own : among;
    const double factor = is_own ? 1 : kLonger;
    if (shutdown_s > 0 && stall.waited_s >= shutdown_s * factor) {
      finding.failure = GpuFailure(stall, is_own, shutdown_s);
      return finding;
    }
    if (IsDue(stall, factor, is_own ? &next_own_s_ : &next_among_s_)) {
      finding.warnings.push_back(GpuWarning(stall, is_own, name_));
    }
  }
  return finding;
}

}  // namespace hvd
