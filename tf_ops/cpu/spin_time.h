// SPDX-License-Identifier: Apache-2.0
// How long a thread that waits for another process may spin before it sleeps.
#ifndef HVD_CPU_SPIN_TIME_H_
#define HVD_CPU_SPIN_TIME_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace hvd {

// Whether a thread that calls sched_yield again and again takes no time from
// those that compute on its core. `release` is the kernel's, such as
// "6.18.4-generic". Before Linux 6.18 the kernel may give the core straight
// back to it, for milliseconds.
[[nodiscard]] bool YieldIsFree(const std::string& release);

// `option_us` is HVD_SPIN_US. If it is 0, the machine decides: spinning is for
// a kernel where it is free, and where no CPU `quota` counts its time.
[[nodiscard]] std::chrono::microseconds SpinTime(int64_t option_us,
                                                 const std::string& release,
                                                 std::optional<int> quota);
// The same for this process, on this machine.
[[nodiscard]] std::chrono::microseconds SpinTime(int64_t option_us);

}  // namespace hvd

#endif  // HVD_CPU_SPIN_TIME_H_
