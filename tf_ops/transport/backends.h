// SPDX-License-Identifier: Apache-2.0
// Chooses the backend of this build. backends.cc alone has #if HVD_WITH_.
#ifndef HVD_TRANSPORT_BACKENDS_H_
#define HVD_TRANSPORT_BACKENDS_H_

#include <cstddef>
#include <functional>
#include <memory>

#include "core/backend.h"
#include "core/doorbell.h"
#include "core/lanes.h"
#include "core/options.h"
#include "core/status.h"
#include "transport/job_args.h"

namespace hvd {

// Opens the job's backend. All ranks of the job call it. If they differ in
// something that must be the same, all get an error. It initialises MPI in the
// calling thread, unless that was done before.
[[nodiscard]] Result<std::unique_ptr<Backend>> OpenBackend(
    const JobArgs& args, const Options& options);

// Ok: this machine has what lanes for tensors on a GPU need, a driver of
// NVIDIA. Loads it, and touches no GPU. Also tells NCCL to make its links when
// it connects, unless the user says otherwise: its variable
// NCCL_RUNTIME_CONNECT is set to 0 where it is not set.
[[nodiscard]] Status PrepareDeviceLanes();

// The lanes of tensors on a GPU. They need PrepareDeviceLanes before. The
// doorbell is that of the job's backend.
[[nodiscard]] std::unique_ptr<DeviceLanes> OpenDeviceLanes(
    std::shared_ptr<Doorbell> doorbell);

// What Segment::ready is for tensors on a GPU: the place that a stream of the
// framework has come to. `stream` is the platform's own, which outlives it. Any
// thread that has the stream's GPU. Not Ok: the GPU's driver is of no use.
// `new_buffer` allocates memory of the GPU for it, by any thread, or returns
// null.
[[nodiscard]] Result<std::shared_ptr<const void>> MarkDeviceStream(
    void* stream,
    std::function<std::shared_ptr<void>(size_t bytes)> new_buffer = {});

// Whether MPI provides MPI_THREAD_MULTIPLE. False before OpenBackend.
[[nodiscard]] bool MpiThreadsSupported();

// Finalises MPI if OpenBackend has initialised it, and nobody has finalised it
// since. Call it at the end of the process only.
void FinalizeBackends();

// The ranks that the launcher has started, with hvd_tf or without. 0: MPI does
// not run, because nobody has initialised it in this process, or it is over.
[[nodiscard]] int LaunchedSize();

// Ends the job of all these ranks, whoever has initialised MPI. Any thread.
// Returns if MPI does not run.
void AbortBackends(int exit_code);

// What this build has.
[[nodiscard]] bool MpiBuilt();
[[nodiscard]] bool CudaBuilt();

}  // namespace hvd

#endif  // HVD_TRANSPORT_BACKENDS_H_
