// SPDX-License-Identifier: Apache-2.0
// Reads the files of cgroup v2 and v1.
#include "cpu/cpu_quota.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>
#include <vector>

namespace hvd {
namespace {

constexpr int kNoLimit = std::numeric_limits<int>::max();

// "" if it cannot be read: getline catches what the file throws.
std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text, '\0');
  return text;
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    parts.push_back(std::move(part));
  }
  return parts;
}

std::string QuotaOfVersion2(const std::string& group) {
  return TextOf(group + "/cpu.max");
}

std::string QuotaOfVersion1(const std::string& group) {
  return TextOf(group + "/cpu.cfs_quota_us") + " " +
         TextOf(group + "/cpu.cfs_period_us");
}

// Lowers `least` to the quota of the group at `path` below `root`, and to those
// of the groups above it. In a container the path may be one of the host's,
// which is not there: then the container's own group is at the root.
void TakeLeast(const std::string& root, std::string path,
               std::string (*quota)(const std::string& group),
               std::optional<int>* least) {
  while (true) {
    if (!path.empty() && path.back() == '/') path.pop_back();
    const std::optional<int> cores = CoresOfQuota(quota(root + path));
    if (cores && cores < least->value_or(kNoLimit)) *least = cores;
    if (path.empty()) return;
    path.resize(path.rfind('/') + 1);
  }
}

}  // namespace

std::optional<int> CoresOfQuota(const std::string& text) {
  std::istringstream stream(text);
  int64_t quota = 0, period = 0;
  if (!(stream >> quota >> period) || quota <= 0 || period <= 0) return {};
  const int64_t cores = quota / period + (quota % period != 0);
  return static_cast<int>(std::min<int64_t>(cores, kNoLimit));
}

std::optional<int> CoresOfGroups(const std::string& groups,
                                 const std::string& root) {
  std::optional<int> least;
  // A line is ID:CONTROLLERS:PATH. v2 has no controllers there.
  for (const std::string& line : Split(groups, '\n')) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::vector<std::string> controllers =
        Split(line.substr(first + 1, second - first - 1), ',');
    const std::string path = line.substr(second + 1);
    if (path.empty() || path[0] != '/') continue;
    if (controllers.empty()) {
      TakeLeast(root, path, QuotaOfVersion2, &least);
    } else if (std::count(controllers.begin(), controllers.end(), "cpu") > 0) {
      TakeLeast(root + "/cpu", path, QuotaOfVersion1, &least);
    }
  }
  return least;
}

std::optional<int> CpuQuotaCores() {
  return CoresOfGroups(TextOf("/proc/self/cgroup"), "/sys/fs/cgroup");
}

}  // namespace hvd
