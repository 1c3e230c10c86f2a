// SPDX-License-Identifier: Apache-2.0
// Finds each rank's place by counting ranks of its host.
#include "transport/topology.h"

#include <map>

namespace hvd {

Topology MakeTopology(int rank, const std::vector<std::string>& host_keys) {
  Topology mine;
  mine.rank = rank;
  mine.size = static_cast<int>(host_keys.size());
  mine.host_of.clear();
  std::map<std::string, int> hosts, local_sizes;
  std::vector<int> local_ranks;
  for (const std::string& key : host_keys) {
    const int next = static_cast<int>(hosts.size());
    mine.host_of.push_back(hosts.emplace(key, next).first->second);
    local_ranks.push_back(local_sizes[key]++);
  }
  mine.local_rank = local_ranks[rank];
  mine.local_size = local_sizes[host_keys[rank]];
  mine.local_ranks.clear();
  for (int peer = 0; peer < mine.size; ++peer) {
    if (host_keys[peer] == host_keys[rank]) mine.local_ranks.push_back(peer);
  }
  mine.cross_size = 0;
  for (int peer = 0; peer < mine.size; ++peer) {
    if (local_ranks[peer] != mine.local_rank) continue;
    if (peer < rank) ++mine.cross_rank;
    ++mine.cross_size;
  }
  for (const auto& [key, local_size] : local_sizes) {
    if (local_size != mine.local_size) mine.is_homogeneous = false;
  }
  return mine;
}

}  // namespace hvd
