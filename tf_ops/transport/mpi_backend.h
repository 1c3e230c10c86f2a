// SPDX-License-Identifier: Apache-2.0
// The backend over MPI. Nothing of mpi.h shows here.
#ifndef HVD_TRANSPORT_MPI_BACKEND_H_
#define HVD_TRANSPORT_MPI_BACKEND_H_

#include <memory>

#include "core/options.h"
#include "core/status.h"
#include "transport/backends.h"
#include "transport/wire_backend.h"

namespace hvd {

// As OpenBackend. May be called again after the last backend is gone: every
// backend has communicators of its own.
Result<std::unique_ptr<WireBackend>> OpenMpiBackend(const JobArgs& args,
                                                    const Options& options);

// As in backends.h.
bool MpiProvidesThreads();
void FinalizeMpi();

}  // namespace hvd

#endif  // HVD_TRANSPORT_MPI_BACKEND_H_
