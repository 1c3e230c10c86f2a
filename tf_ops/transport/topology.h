// SPDX-License-Identifier: Apache-2.0
// Local and cross ranks, from knowing which ranks share a host.
#ifndef HVD_TRANSPORT_TOPOLOGY_H_
#define HVD_TRANSPORT_TOPOLOGY_H_

#include <string>
#include <vector>

#include "core/backend.h"

namespace hvd {

// Ranks with equal `host_keys` share a host; one key per rank of the job. Pure,
// so that all ranks see the same job. Leaves Topology::hosts empty.
Topology MakeTopology(int rank, const std::vector<std::string>& host_keys);

}  // namespace hvd

#endif  // HVD_TRANSPORT_TOPOLOGY_H_
