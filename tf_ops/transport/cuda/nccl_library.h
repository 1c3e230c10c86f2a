// SPDX-License-Identifier: Apache-2.0
// NcclLibrary: the calls of NCCL that lanes need.
//
// The library is looked for when it is needed, and never linked. So one build
// serves machines with and without it. It is the one that the process has
// loaded, or else the one that the loader finds.
#ifndef HVD_TRANSPORT_CUDA_NCCL_LIBRARY_H_
#define HVD_TRANSPORT_CUDA_NCCL_LIBRARY_H_

#include <cstddef>
#include <functional>
#include <string>

#include "core/status.h"
#include "transport/cuda/cuda_driver.h"

// As nccl.h declares it.
struct ncclComm;

namespace hvd {

using NcclComm = ncclComm*;

// ncclUniqueId.
struct NcclId {
  char bytes[128];
};

// ncclConfig_t of NCCL 2.14, which newer versions take as well.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

// Values of nccl.h's enumerations.
inline constexpr int kNcclSuccess = 0;
inline constexpr int kNcclRemoteError = 6;
inline constexpr int kNcclInProgress = 7;
inline constexpr int kNcclSum = 0;
inline constexpr int kNcclProd = 1;
inline constexpr int kNcclMax = 2;
inline constexpr int kNcclMin = 3;
inline constexpr int kNcclInt8 = 0;
inline constexpr int kNcclUint8 = 1;
inline constexpr int kNcclInt32 = 2;
inline constexpr int kNcclInt64 = 4;
inline constexpr int kNcclFloat16 = 6;
inline constexpr int kNcclFloat32 = 7;
inline constexpr int kNcclFloat64 = 8;
inline constexpr int kNcclBfloat16 = 9;
inline constexpr int kNcclScalarOfHost = 1;

// Each returns an ncclResult_t unless it is said otherwise. nccl.h has their
// contracts, under the names that are in nccl_library.cc.
struct NcclLibrary {
  int (*get_version)(int* version) = nullptr;
  int (*new_id)(NcclId* id) = nullptr;
  int (*connect)(NcclComm* comm, int size, NcclId id, int rank,
                 NcclConfig* config) = nullptr;
  int (*get_async_error)(NcclComm comm, int* error) = nullptr;
  int (*abort)(NcclComm comm) = nullptr;
  int (*begin_group)() = nullptr;
  int (*end_group)() = nullptr;
  int (*allreduce)(const void* in, void* out, size_t count, int dtype, int op,
                   NcclComm comm, CudaStream stream) = nullptr;
  int (*reducescatter)(const void* in, void* out, size_t count_out, int dtype,
                       int op, NcclComm comm, CudaStream stream) = nullptr;
  int (*reduce)(const void* in, void* out, size_t count, int dtype, int op,
                int root, NcclComm comm, CudaStream stream) = nullptr;
  int (*broadcast)(const void* in, void* out, size_t count, int dtype, int root,
                   NcclComm comm, CudaStream stream) = nullptr;
  int (*allgather)(const void* in, void* out, size_t count_in, int dtype,
                   NcclComm comm, CudaStream stream) = nullptr;
  int (*send)(const void* in, size_t count, int dtype, int peer, NcclComm comm,
              CudaStream stream) = nullptr;
  int (*receive)(void* out, size_t count, int dtype, int peer, NcclComm comm,
                 CudaStream stream) = nullptr;
  int (*new_scaled_sum)(int* op, void* scalar, int dtype, int residence,
                        NcclComm comm) = nullptr;
  const char* (*text_of_error)(int result) = nullptr;
  // What was wrong last, in words. `comm` may be null.
  const char* (*last_error)(NcclComm comm) = nullptr;

  // `find` returns the address of the function of that name, or null.
  [[nodiscard]] static Result<NcclLibrary> Find(
      const std::function<void*(const char* name)>& find);

  // That of the machine, which is loaded once. Any thread. An error stays.
  [[nodiscard]] static Result<const NcclLibrary*> OfMachine();

  // Ok, also for what is in progress, or an error that begins with `what`.
  [[nodiscard]] Status Check(int result, const std::string& what,
                             NcclComm comm) const;
};

// From here on NCCL makes its links when it connects, unless the user says
// otherwise: its variable NCCL_RUNTIME_CONNECT is set to 0 where it is not set.
// Else NCCL 2.22 and newer makes them when there is a batch, and a rank that
// cannot be reached would show then.
void LinkNcclAtOnce();

}  // namespace hvd

#endif  // HVD_TRANSPORT_CUDA_NCCL_LIBRARY_H_
