// SPDX-License-Identifier: Apache-2.0
// Chooses the backend of this build. backends.cc alone has #if HVD_WITH_.
#ifndef HVD_TRANSPORT_BACKENDS_H_
#define HVD_TRANSPORT_BACKENDS_H_

#include <memory>
#include <optional>
#include <vector>

#include "core/backend.h"
#include "core/options.h"
#include "core/status.h"

namespace hvd {

// Which processes make up the job, and which sets of them work together.
struct JobArgs {
  // World ranks that take part; empty: all.
  std::vector<int> world_ranks;
  // A Fortran handle of an MPI communicator. If set, it is used instead.
  std::optional<int> mpi_comm;
  // Ranks of the job. The sets are the same on every rank.
  std::vector<std::vector<int>> process_sets;
};

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
