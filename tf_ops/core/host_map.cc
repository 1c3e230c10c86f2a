// SPDX-License-Identifier: Apache-2.0
// Groups ranks by host.
#include "core/host_map.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace hvd {

int HostMap::smallest_host() const {
  size_t smallest = host.size();
  for (const std::vector<int>& members : ranks) {
    smallest = std::min(smallest, members.size());
  }
  return static_cast<int>(smallest);
}

HostMap MakeHostMap(const std::vector<int>& keys) {
  HostMap map;
  std::map<int, int> hosts;
  for (size_t rank = 0; rank < keys.size(); ++rank) {
    const int next = map.host_count();
    const int host = hosts.emplace(keys[rank], next).first->second;
    if (host == next) map.ranks.emplace_back();
    map.host.push_back(host);
    map.place.push_back(static_cast<int>(map.ranks[host].size()));
    map.ranks[host].push_back(static_cast<int>(rank));
  }
  return map;
}

HostMap OneHost(int size) { return MakeHostMap(std::vector<int>(size, 0)); }

HostMap EachAlone(int size) {
  std::vector<int> keys(size);
  std::iota(keys.begin(), keys.end(), 0);
  return MakeHostMap(keys);
}

}  // namespace hvd
