// SPDX-License-Identifier: Apache-2.0
// HostTree: who of a set gathers the reports of each host, and hands on the
// log.
#ifndef HVD_CORE_CONTROL_HOST_TREE_H_
#define HVD_CORE_CONTROL_HOST_TREE_H_

#include <vector>

#include "core/host_map.h"

namespace hvd {

// A rank that is sent the log, and the ranks for which it hears it.
struct LogReceiver {
  int rank = 0;
  std::vector<int> hears_for;  // itself included
};

// The first rank of each host is its *gatherer*. The ranks of the host report
// to it. It tells the leader what they say, and hands the log on to them. The
// leader gathers for its own host. So with H hosts of L ranks the leader has
// H - 1 + L - 1 peers, not H * L - 1.
//
// Only a set with several hosts, and several ranks on one of them, has such a
// tree. In all others each rank reports to the leader.
//
// Pure: all ranks of a set have the same tree. Ranks are ranks of the set.
class HostTree {
 public:
  // `rank`: this one. A map without hosts stands for one host.
  HostTree(HostMap hosts, int rank, int size);

  bool is_on() const { return hosts_.has_two_levels(); }
  // Whether this rank gathers for a host.
  bool gathers() const { return is_on() && gatherer() == rank_; }
  // The rank that this one reports to, and gets the log from. The leader's is
  // itself.
  int upper() const { return is_on() && !gathers() ? gatherer() : 0; }
  // The ranks of this rank's host, ascending.
  const std::vector<int>& neighbours() const {
    return hosts_.ranks[hosts_.host[rank_]];
  }
  // The host that the rank gathers for. -1: it gathers for none.
  int HostOfGatherer(int rank) const;
  // Those that this rank sends the log to.
  std::vector<LogReceiver> receivers() const;

  const HostMap& hosts() const { return hosts_; }

 private:
  int gatherer() const { return neighbours().front(); }

  const HostMap hosts_;
  const int rank_;
  const int size_;
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_HOST_TREE_H_
