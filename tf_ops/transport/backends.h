// SPDX-License-Identifier: Apache-2.0
// Chooses the backend of this build; the only file with #if HVD_WITH_.
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
  // A Fortran handle of an MPI communicator; used instead when set.
  std::optional<int> mpi_comm;
  // Ranks of the job; the same sets on every rank.
  std::vector<std::vector<int>> process_sets;
};

// Opens the job's backend. Collective over its ranks, which all get an error
// when what must be alike is not; initialises MPI in the calling thread unless
// that was done before.
[[nodiscard]] Result<std::unique_ptr<Backend>> OpenBackend(
    const JobArgs& args, const Options& options);

// MPI_THREAD_MULTIPLE is provided. False before OpenBackend.
[[nodiscard]] bool MpiThreadsSupported();

// Finalises MPI if OpenBackend was what initialised it and nobody has
// finalised it since. At the end of the process only.
void FinalizeBackends();

// Build facts.
[[nodiscard]] bool MpiBuilt();
[[nodiscard]] int NcclBuilt();
[[nodiscard]] bool CudaBuilt();

}  // namespace hvd

#endif  // HVD_TRANSPORT_BACKENDS_H_
