// SPDX-License-Identifier: Apache-2.0
// Counts cores, and asks the kernel how many of them are busy.
#include "cpu/spare_cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bitset>
#include <cstdlib>
#include <cstring>

#include "cpu/cpu_quota.h"

namespace hvd {
namespace {

constexpr int kCoresPerHelper = 4;
constexpr int kMostHelpers = 3;
// A machine is busy if more than this share of its cores work.
constexpr double kBusyShare = 0.75;
// The kernel's load average changes slowly, so once a second is enough.
constexpr std::chrono::seconds kLookEvery{1};

std::bitset<8> BitsOf(char byte) { return static_cast<unsigned char>(byte); }

}  // namespace

int HelperCount(int64_t threads, int cores, int sharing_ranks) {
  if (threads > 0) return static_cast<int>(threads) - 1;
  return std::min(cores / sharing_ranks / kCoresPerHelper, kMostHelpers);
}

std::string UsableCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return "";
  std::string bits(sizeof(cores), '\0');
  std::memcpy(bits.data(), &cores, sizeof(cores));
  return bits;
}

int CountCores(const std::string& cores, std::optional<int> quota) {
  int count = 0;
  for (const char byte : cores) count += static_cast<int>(BitsOf(byte).count());
  return std::max(std::min(count, quota.value_or(count)), 1);
}

int SharingRanks(const std::vector<std::string>& cores,
                 const std::string& mine) {
  const auto shares = [&](const std::string& theirs) {
    const size_t bytes = std::min(theirs.size(), mine.size());
    for (size_t i = 0; i < bytes; ++i) {
      if ((BitsOf(theirs[i]) & BitsOf(mine[i])).any()) return true;
    }
    return bytes == 0;
  };
  const auto count = std::count_if(cores.begin(), cores.end(), shares);
  return std::max(static_cast<int>(count), 1);
}

SpareCores::SpareCores(int64_t threads, int sharing_ranks)
    : is_fixed_(threads > 0),
      helpers_(HelperCount(threads, CountCores(UsableCores(), CpuQuotaCores()),
                           sharing_ranks)) {}

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
