// SPDX-License-Identifier: Apache-2.0
// Which backends this build has.
#include "transport/backends.h"

#include <algorithm>
#include <utility>

#include "transport/cuda/cuda_driver.h"
#include "transport/cuda/cuda_kernels.h"
#include "transport/cuda/cuda_lanes.h"
#include "transport/cuda/cuda_mark.h"
#include "transport/cuda/nccl_library.h"
#include "transport/shm/shm_setup.h"
#include "transport/solo_backend.h"
#if HVD_WITH_MPI
#include "transport/mpi/mpi_backend.h"
#include "transport/mpi/mpi_process.h"
#endif

namespace hvd {

#if HVD_WITH_MPI

namespace {

// Whether any host has several ranks.
bool HasNeighbours(const Topology& topology) {
  return *std::max_element(topology.host_of.begin(), topology.host_of.end()) <
         topology.size - 1;
}

}  // namespace

Result<std::unique_ptr<Backend>> OpenBackend(const JobArgs& args,
                                             const Options& options) {
  Result<std::unique_ptr<WireBackend>> mpi = OpenMpiBackend(args, options);
  if (!mpi.ok()) return mpi.status();
  // If no host has two ranks, no ranks can share memory.
  if (!HasNeighbours(mpi.value()->topology())) {
    return std::unique_ptr<Backend>(std::move(mpi.value()));
  }
  return AddSharedMemory(std::move(mpi.value()), options, args.process_sets);
}
bool MpiThreadsSupported() { return MpiProvidesThreads(); }
void FinalizeBackends() { FinalizeMpi(); }
int LaunchedSize() { return MpiWorldSize(); }
void AbortBackends(int exit_code) { AbortMpi(exit_code); }
bool MpiBuilt() { return true; }

#else

Result<std::unique_ptr<Backend>> OpenBackend(const JobArgs& args,
                                             const Options& options) {
  return OpenSoloBackend(args, options);
}
bool MpiThreadsSupported() { return false; }
void FinalizeBackends() {}
int LaunchedSize() { return 0; }
void AbortBackends(int) {}
bool MpiBuilt() { return false; }

#endif

Status PrepareDeviceLanes() {
  const Result<const CudaDriver*> driver = CudaDriver::OfMachine();
  if (driver.ok()) LinkNcclAtOnce();
  return driver.status();
}

std::unique_ptr<DeviceLanes> OpenDeviceLanes(
    std::shared_ptr<Doorbell> doorbell) {
  return std::make_unique<CudaLanes>(std::move(doorbell));
}

Result<std::shared_ptr<const void>> MarkDeviceStream(
    void* stream,
    std::function<std::shared_ptr<void>(size_t bytes)> new_buffer) {
  const Result<const CudaDriver*> driver = CudaDriver::OfMachine();
  if (!driver.ok()) return driver.status();
  return MarkStream(driver.value(), stream, std::move(new_buffer));
}

bool CudaBuilt() { return CudaKernelImage() != nullptr; }

}  // namespace hvd
