// SPDX-License-Identifier: Apache-2.0
// SoloBackend: a job of one rank, for builds without MPI.
#ifndef HVD_TRANSPORT_SOLO_BACKEND_H_
#define HVD_TRANSPORT_SOLO_BACKEND_H_

#include <memory>

#include "core/backend.h"
#include "core/options.h"
#include "core/status.h"
#include "transport/job_args.h"

namespace hvd {

// Returns an error if `args` or the environment ask for more than one rank.
Result<std::unique_ptr<Backend>> OpenSoloBackend(const JobArgs& args,
                                                 const Options& options);

}  // namespace hvd

#endif  // HVD_TRANSPORT_SOLO_BACKEND_H_
