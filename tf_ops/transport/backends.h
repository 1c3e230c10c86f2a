// SPDX-License-Identifier: Apache-2.0
// Chooses the backend of this build. backends.cc alone has #if HVD_WITH_.
#ifndef HVD_TRANSPORT_BACKENDS_H_
#define HVD_TRANSPORT_BACKENDS_H_

#include <memory>

#include "core/backend.h"
#include "core/options.h"
#include "core/status.h"
#include "transport/job_args.h"

namespace hvd {

// Opens the job's backend. All ranks of the job call it. If they differ in
// something that must be the same, all get an error. It initialises MPI in the
// calling thread, unless that was done before.
[[nodiscard]] Result<std::unique_ptr<Backend>> OpenBackend(
    const JobArgs& args, const Options& options);

// Whether MPI provides MPI_THREAD_MULTIPLE. False before OpenBackend.
[[nodiscard]] bool MpiThreadsSupported();

// Finalises MPI if OpenBackend has initialised it, and nobody has finalised it
// since. Call it at the end of the process only.
void FinalizeBackends();

// What this build has.
[[nodiscard]] bool MpiBuilt();
[[nodiscard]] int NcclBuilt();
[[nodiscard]] bool CudaBuilt();

}  // namespace hvd

#endif  // HVD_TRANSPORT_BACKENDS_H_
