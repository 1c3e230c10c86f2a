// SPDX-License-Identifier: Apache-2.0
// The shared-memory backend: for a job that has several ranks on a host.
#ifndef HVD_TRANSPORT_SHM_SHM_BACKEND_H_
#define HVD_TRANSPORT_SHM_SHM_BACKEND_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "core/options.h"
#include "core/status.h"
#include "transport/shm/shm_host.h"
#include "transport/wire_backend.h"

namespace hvd {

// The ranks of each set. They are ranks of the job.
using ProcessSets = std::vector<std::vector<int>>;

// `base`, with messages and data between ranks of a host going through `host`.
// That is of the ranks of base's host, and its arenas are of ShmArenaBytes.
// What crosses hosts, and what else a backend does, is still base's.
[[nodiscard]] std::unique_ptr<Backend> NewShmBackend(
    std::unique_ptr<WireBackend> base, std::shared_ptr<ShmHost> host,
    const Options& options);

// Bytes of the arena of each rank of the topology's host. They do for the sets
// of any one of these ranks. What other ranks are in costs nothing.
[[nodiscard]] size_t ShmArenaBytes(const Options& options,
                                   const Topology& topology,
                                   const ProcessSets& process_sets);

}  // namespace hvd

#endif  // HVD_TRANSPORT_SHM_SHM_BACKEND_H_
