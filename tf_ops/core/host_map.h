// SPDX-License-Identifier: Apache-2.0
// HostMap: which ranks of a set share a host.
#ifndef HVD_CORE_HOST_MAP_H_
#define HVD_CORE_HOST_MAP_H_

#include <vector>

namespace hvd {

// Which rank runs on which host. The map is the same on every rank of the set.
// Hosts are numbered in the order of their first ranks.
struct HostMap {
  std::vector<std::vector<int>> ranks;  // of each host, ascending
  std::vector<int> host;                // of each rank
  std::vector<int> place;               // of each rank, among the host's ranks

  int host_count() const { return static_cast<int>(ranks.size()); }
  // The number of ranks of the host that has the fewest.
  int smallest_host() const;
  // Whether there are several hosts, and several ranks on one of them.
  bool has_two_levels() const {
    return host_count() > 1 && ranks.size() < host.size();
  }
};

// Ranks with equal keys share a host. There is one key for each rank.
HostMap MakeHostMap(const std::vector<int>& keys);
// OneHost: all ranks on one host. EachAlone: each rank on a host of its own.
HostMap OneHost(int size);
HostMap EachAlone(int size);

}  // namespace hvd

#endif  // HVD_CORE_HOST_MAP_H_
