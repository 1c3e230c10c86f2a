// SPDX-License-Identifier: Apache-2.0
// Finds each rank's place in the tree.
#include "core/control/host_tree.h"

#include <utility>

namespace hvd {

HostTree::HostTree(HostMap hosts, int rank, int size)
    : hosts_(std::move(hosts)), rank_(rank), size_(size) {}

int HostTree::HostOfGatherer(int rank) const {
  if (!is_on() || rank < 0 || rank >= size_) return -1;
  const int host = hosts_.host[rank];
  return hosts_.ranks[host].front() == rank ? host : -1;
}

std::vector<LogReceiver> HostTree::receivers() const {
  std::vector<LogReceiver> receivers;
  if (!is_on()) {
    if (rank_ != 0) return receivers;
    for (int rank = 1; rank < size_; ++rank)
      receivers.push_back({rank, {rank}});
    return receivers;
  }
  if (!gathers()) return receivers;
  for (int rank : neighbours()) {
    if (rank != rank_) receivers.push_back({rank, {rank}});
  }
  if (rank_ != 0) return receivers;
  for (int host = 1; host < hosts_.host_count(); ++host) {
    receivers.push_back({hosts_.ranks[host].front(), hosts_.ranks[host]});
  }
  return receivers;
}

}  // namespace hvd
