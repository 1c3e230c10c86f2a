// SPDX-License-Identifier: Apache-2.0
// What this process has of MPI. This header does not include mpi.h.
#ifndef HVD_TRANSPORT_MPI_MPI_PROCESS_H_
#define HVD_TRANSPORT_MPI_MPI_PROCESS_H_

namespace hvd {

// As MpiThreadsSupported and FinalizeBackends in backends.h. mpi_session.cc has
// them, because MPI is initialised there.
[[nodiscard]] bool MpiProvidesThreads();
void FinalizeMpi();

}  // namespace hvd

#endif  // HVD_TRANSPORT_MPI_MPI_PROCESS_H_
