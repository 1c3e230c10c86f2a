// SPDX-License-Identifier: Apache-2.0
// The backend over MPI. This header does not include mpi.h.
#ifndef HVD_TRANSPORT_MPI_MPI_BACKEND_H_
#define HVD_TRANSPORT_MPI_MPI_BACKEND_H_

#include <memory>

#include "core/options.h"
#include "core/status.h"
#include "transport/job_args.h"
#include "transport/wire_backend.h"

namespace hvd {

// Like OpenBackend. It may be called again after the last backend is gone,
// because every backend has its own communicators.
Result<std::unique_ptr<WireBackend>> OpenMpiBackend(const JobArgs& args,
                                                    const Options& options);

}  // namespace hvd

#endif  // HVD_TRANSPORT_MPI_MPI_BACKEND_H_
