// SPDX-License-Identifier: Apache-2.0
// Counts cores, and asks the kernel how many of them are busy.
#include "cpu/spare_cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace hvd {
namespace {

constexpr int kCoresPerHelper = 4;
constexpr int kMostHelpers = 3;
// A machine is busy if more than this share of its cores work.
constexpr double kBusyShare = 0.75;
// The kernel's load average changes slowly, so once a second is enough.
constexpr std::chrono::seconds kLookEvery{1};

}  // namespace

int HelperCount(int64_t threads, int cores, int local_ranks) {
  if (threads > 0) return static_cast<int>(threads) - 1;
  return std::min(cores / local_ranks / kCoresPerHelper, kMostHelpers);
}

int UsableCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return CPU_COUNT(&cores);
}

SpareCores::SpareCores(int64_t threads, int local_ranks)
    : is_fixed_(threads > 0),
      helpers_(HelperCount(threads, UsableCores(), local_ranks)) {}

WorkThreads* SpareCores::Threads() {
  if (helpers_ == 0 || (!is_fixed_ && IsBusy())) return nullptr;
  if (threads_ == nullptr) threads_ = std::make_unique<WorkThreads>(helpers_);
  return threads_.get();
}

bool SpareCores::IsBusy() {
  const Clock::time_point now = Clock::now();
  if (now - looked_ < kLookEvery) return busy_;
  looked_ = now;
  double running = 0;
  const auto cores = static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
  busy_ = getloadavg(&running, 1) != 1 || running > kBusyShare * cores;
  return busy_;
}

}  // namespace hvd
