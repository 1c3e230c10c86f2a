// SPDX-License-Identifier: Apache-2.0
// AddSharedMemory: sets shared memory up among the ranks of each host.
#ifndef HVD_TRANSPORT_SHM_SHM_SETUP_H_
#define HVD_TRANSPORT_SHM_SHM_SETUP_H_

#include <memory>

#include "core/options.h"
#include "core/status.h"
#include "transport/shm/shm_backend.h"
#include "transport/wire_backend.h"

namespace hvd {

// NewShmBackend over `base`, and memory that ranks which are processes share
// from now on. Just `base`, after one line that says why, where a rank cannot
// have the memory.
//
// Collective over the job. `process_sets` are foreseen beside that of all
// ranks.
[[nodiscard]] Result<std::unique_ptr<Backend>> AddSharedMemory(
    std::unique_ptr<WireBackend> base, const Options& options,
    const ProcessSets& process_sets);

}  // namespace hvd

#endif  // HVD_TRANSPORT_SHM_SHM_SETUP_H_
