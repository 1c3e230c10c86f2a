// SPDX-License-Identifier: Apache-2.0
// What this process has of MPI. This header does not include mpi.h.
#ifndef HVD_TRANSPORT_MPI_MPI_PROCESS_H_
#define HVD_TRANSPORT_MPI_MPI_PROCESS_H_

namespace hvd {

// Whether MPI is finalised in this process. Then none of its functions may be
// called any more. A thread of TensorFlow may let go of a backend that late.
[[nodiscard]] bool MpiIsFinalised();

// As MpiThreadsSupported, LaunchedSize, AbortBackends and FinalizeBackends in
// backends.h.
[[nodiscard]] bool MpiProvidesThreads();
[[nodiscard]] int MpiWorldSize();
void AbortMpi(int exit_code);
// mpi_session.cc has it, because MPI is initialised there.
void FinalizeMpi();

}  // namespace hvd

#endif  // HVD_TRANSPORT_MPI_MPI_PROCESS_H_
