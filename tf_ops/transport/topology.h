// SPDX-License-Identifier: Apache-2.0
// Makes local and cross ranks, given which ranks share a host.
#ifndef HVD_TRANSPORT_TOPOLOGY_H_
#define HVD_TRANSPORT_TOPOLOGY_H_

#include <string>
#include <vector>

#include "core/backend.h"

namespace hvd {

// Ranks with equal `host_keys` share a host. There is one key for each rank of
// the job. Pure, so that all ranks get the same result. Topology::hosts stays
// empty.
Topology MakeTopology(int rank, const std::vector<std::string>& host_keys);

}  // namespace hvd

#endif  // HVD_TRANSPORT_TOPOLOGY_H_
