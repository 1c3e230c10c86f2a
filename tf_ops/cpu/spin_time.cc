// SPDX-License-Identifier: Apache-2.0
// Reads the kernel's release.
#include "cpu/spin_time.h"

#include <sys/utsname.h>

#include <cstdio>
#include <utility>

#include "cpu/cpu_quota.h"

namespace hvd {
namespace {

using std::chrono::microseconds;

// Linux 6.18: a thread that yields gives up what it could still run for
// ("sched/fair: Forfeit vruntime on yield").
constexpr std::pair kFreeSince{6, 18};

// A core that goes to sleep needs long to wake up, above all in a virtual
// machine. Of 0.06 to 20 ms, what was gained from spinning was there with 3
// (docs/notes/2026-11-28-ranks-that-spin.md).
constexpr microseconds kLongSpin{3000};
// An answer often comes within this time, and going to sleep and waking up take
// as long (docs/notes/2026-11-22-small-tensors-on-four-ranks.md).
constexpr microseconds kShortSpin{60};

}  // namespace

bool YieldIsFree(const std::string& release) {
  std::pair<int, int> version;
  if (std::sscanf(release.c_str(), "%d.%d", &version.first, &version.second) !=
      2) {
    return false;
  }
  return version >= kFreeSince;
}

microseconds SpinTime(int64_t option_us, const std::string& release,
                      std::optional<int> quota) {
  if (option_us > 0) return microseconds(option_us);
  return YieldIsFree(release) && !quota.has_value() ? kLongSpin : kShortSpin;
}

microseconds SpinTime(int64_t option_us) {
  utsname system{};
  const bool known = uname(&system) == 0;
  return SpinTime(option_us, known ? system.release : "", CpuQuotaCores());
}

}  // namespace hvd
