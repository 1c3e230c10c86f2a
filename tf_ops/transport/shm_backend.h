// SPDX-License-Identifier: Apache-2.0
// The shared-memory backend: for a job that has several ranks on a host.
#ifndef HVD_TRANSPORT_SHM_BACKEND_H_
#define HVD_TRANSPORT_SHM_BACKEND_H_

#include <cstddef>
#include <memory>

#include "core/options.h"
#include "core/status.h"
#include "transport/shm_host.h"
#include "transport/wire_backend.h"

namespace hvd {

// `base`, with messages and data between ranks of a host going through shared
// memory from now on; what crosses hosts, and what else a backend does, is
// still `base`'s. Just `base`, after one line that says why, where a rank
// cannot have the memory.
//
// Collective over the job. `set_count` process sets beside the global one are
// foreseen.
[[nodiscard]] Result<std::unique_ptr<Backend>> AddSharedMemory(
    std::unique_ptr<WireBackend> base, const Options& options, int set_count);

// The same over memory that is there already, as ranks have it that are threads
// of one process: `host` is of the ranks of base's host, its arenas are of
// ShmArenaBytes.
[[nodiscard]] std::unique_ptr<Backend> NewShmBackend(
    std::unique_ptr<WireBackend> base, std::shared_ptr<ShmHost> host,
    const Options& options);
[[nodiscard]] size_t ShmArenaBytes(const Options& options,
                                   const Topology& topology, int set_count);

}  // namespace hvd

#endif  // HVD_TRANSPORT_SHM_BACKEND_H_
