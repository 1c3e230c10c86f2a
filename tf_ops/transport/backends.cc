// SPDX-License-Identifier: Apache-2.0
// Which backends this build has.
#include "transport/backends.h"

#include <utility>

#include "transport/shm_backend.h"
#include "transport/solo_backend.h"
#if HVD_WITH_MPI
#include "transport/mpi_backend.h"
#endif

namespace hvd {

#if HVD_WITH_MPI

Result<std::unique_ptr<Backend>> OpenBackend(const JobArgs& args,
                                             const Options& options) {
  Result<std::unique_ptr<Backend>> mpi = OpenMpiBackend(args, options);
  if (!mpi.ok()) return mpi;
  const Topology& topology = mpi.value()->topology();
  if (topology.size == 1 || topology.local_size < topology.size) return mpi;
  return AddSharedMemory(std::move(mpi.value()), options,
                         static_cast<int>(args.process_sets.size()));
}
bool MpiThreadsSupported() { return MpiProvidesThreads(); }
void FinalizeBackends() { FinalizeMpi(); }
bool MpiBuilt() { return true; }

#else

Result<std::unique_ptr<Backend>> OpenBackend(const JobArgs& args,
                                             const Options& options) {
  return OpenSoloBackend(args, options);
}
bool MpiThreadsSupported() { return false; }
void FinalizeBackends() {}
bool MpiBuilt() { return false; }

#endif

int NcclBuilt() { return 0; }
bool CudaBuilt() { return false; }

}  // namespace hvd
