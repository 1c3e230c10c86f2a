// SPDX-License-Identifier: Apache-2.0
// The shared-memory backend: for a job whose ranks are all on one host.
#ifndef HVD_TRANSPORT_SHM_BACKEND_H_
#define HVD_TRANSPORT_SHM_BACKEND_H_

#include <cstddef>
#include <memory>

#include "core/backend.h"
#include "core/options.h"
#include "core/status.h"
#include "transport/shm_host.h"

namespace hvd {

// `base`, with messages and data going through shared memory from now on; what
// else a backend does is still `base`'s. Just `base`, after one line that says
// why, where a rank cannot have the memory.
//
// Collective over the job, whose ranks are all on one host. `set_count` process
// sets beside the global one are foreseen.
[[nodiscard]] Result<std::unique_ptr<Backend>> AddSharedMemory(
    std::unique_ptr<Backend> base, const Options& options, int set_count);

// The same over memory that is there already, as ranks have it that are threads
// of one process; its arenas are of ShmArenaBytes.
[[nodiscard]] std::unique_ptr<Backend> NewShmBackend(
    std::unique_ptr<Backend> base, std::shared_ptr<ShmHost> host,
    const Options& options);
[[nodiscard]] size_t ShmArenaBytes(const Options& options, int ranks,
                                   int set_count);

}  // namespace hvd

#endif  // HVD_TRANSPORT_SHM_BACKEND_H_
