// SPDX-License-Identifier: Apache-2.0
// The limit that control groups set on a process's CPU time, as with docker's
// --cpus or Kubernetes' limits.
#ifndef HVD_CPU_CPU_QUOTA_H_
#define HVD_CPU_CPU_QUOTA_H_

#include <optional>
#include <string>

namespace hvd {

// How many cores a quota keeps busy, rounded up. `text` is as in a cpu.max of
// cgroup v2: the quota and the period, in the same unit. None: there is no
// limit ("max", or -1 in cgroup v1), or the text makes no sense.
[[nodiscard]] std::optional<int> CoresOfQuota(const std::string& text);

// The least of any of a process's groups, and of those above them. `groups` is
// the text of its /proc/self/cgroup. The files of the groups are below `root`.
// What cannot be read is no limit.
[[nodiscard]] std::optional<int> CoresOfGroups(const std::string& groups,
                                               const std::string& root);
// The same for this process' own groups.
[[nodiscard]] std::optional<int> CpuQuotaCores();

}  // namespace hvd

#endif  // HVD_CPU_CPU_QUOTA_H_
