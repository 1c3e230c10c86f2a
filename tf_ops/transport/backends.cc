// SPDX-License-Identifier: Apache-2.0
// Which backends this build has.
#include "transport/backends.h"

#include "transport/solo_backend.h"
#if HVD_WITH_MPI
#include "transport/mpi_backend.h"
#endif

namespace hvd {

#if HVD_WITH_MPI

Result<std::unique_ptr<Backend>> OpenBackend(const JobArgs& args,
                                             const Options& options) {
  return OpenMpiBackend(args, options);
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
