// SPDX-License-Identifier: Apache-2.0
// HostMap: which ranks of a set share a host, as the pieces of a batch see it.
#ifndef HVD_TRANSPORT_HOST_MAP_H_
#define HVD_TRANSPORT_HOST_MAP_H_

#include <vector>

namespace hvd {

// The same on every rank of the set. Hosts are numbered by their first rank.
struct HostMap {
  std::vector<std::vector<int>> ranks;  // of each host, ascending
  std::vector<int> host;                // of each rank
  std::vector<int> place;               // of each rank, among its host's

  int host_count() const { return static_cast<int>(ranks.size()); }
  // Ranks of the host that has fewest.
  int smallest_host() const;
  // Whether there is both a wire within a host and one between hosts.
  bool has_two_levels() const {
    return host_count() > 1 && ranks.size() < host.size();
  }
};

// Ranks with equal keys share a host; one key per rank.
HostMap MakeHostMap(const std::vector<int>& keys);
// All on one host, and each on a host of its own.
HostMap OneHost(int size);
HostMap EachAlone(int size);

}  // namespace hvd

#endif  // HVD_TRANSPORT_HOST_MAP_H_
