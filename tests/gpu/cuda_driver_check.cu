// SPDX-License-Identifier: Apache-2.0
// Compares cuda_driver.h with cuda.h, while it is compiled.
#include <cuda.h>

#include <string_view>
#include <type_traits>

#include "transport/cuda/cuda_driver.h"

namespace hvd {
namespace {

// The same registers hold both: enumerations and CUdeviceptr are numbers or
// pointers in our declarations.
template <typename Ours, typename Theirs>
constexpr bool kAlike =
    std::is_same_v<Ours, Theirs> ||
    (sizeof(Ours) == sizeof(Theirs) &&
     (std::is_pointer_v<Ours> || std::is_integral_v<Ours>) &&
     (std::is_pointer_v<Theirs> || std::is_integral_v<Theirs> ||
      std::is_enum_v<Theirs>));

template <typename OurResult, typename... Ours, typename TheirResult,
          typename... Theirs>
constexpr bool AreAlike(OurResult (*CudaDriver::*)(Ours...),
                        TheirResult (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) == sizeof...(Theirs)) {
    return kAlike<OurResult, TheirResult> && (kAlike<Ours, Theirs> && ...);
  } else {
    return false;
  }
}

// cuda.h's macros give some functions the names of newer versions.
#define HVD_TEXT(name) #name
#define HVD_NAME(function) HVD_TEXT(function)
#define HVD_CHECK(ours, theirs, name)                 \
  static_assert(AreAlike(&CudaDriver::ours, theirs)); \
  static_assert(std::string_view(HVD_NAME(theirs)) == name)

HVD_CHECK(version, &cuDriverGetVersion, "&cuDriverGetVersion");
HVD_CHECK(push_context, &cuCtxPushCurrent, "&cuCtxPushCurrent_v2");
HVD_CHECK(pop_context, &cuCtxPopCurrent, "&cuCtxPopCurrent_v2");
HVD_CHECK(current_gpu, &cuCtxGetDevice, "&cuCtxGetDevice");
HVD_CHECK(uuid, &cuDeviceGetUuid, "&cuDeviceGetUuid_v2");
HVD_CHECK(context_of_stream, &cuStreamGetCtx, "&cuStreamGetCtx");
HVD_CHECK(new_stream, &cuStreamCreate, "&cuStreamCreate");
HVD_CHECK(delete_stream, &cuStreamDestroy, "&cuStreamDestroy_v2");
HVD_CHECK(wait_for_event, &cuStreamWaitEvent, "&cuStreamWaitEvent");
HVD_CHECK(call_back, &cuStreamAddCallback, "&cuStreamAddCallback");
HVD_CHECK(new_event, &cuEventCreate, "&cuEventCreate");
HVD_CHECK(delete_event, &cuEventDestroy, "&cuEventDestroy_v2");
HVD_CHECK(record_event, &cuEventRecord, "&cuEventRecord");
HVD_CHECK(query_event, &cuEventQuery, "&cuEventQuery");
HVD_CHECK(copy, &cuMemcpyAsync, "&cuMemcpyAsync");
HVD_CHECK(load_module, &cuModuleLoadData, "&cuModuleLoadData");
HVD_CHECK(find_kernel, &cuModuleGetFunction, "&cuModuleGetFunction");
HVD_CHECK(launch, &cuLaunchKernel, "&cuLaunchKernel");
HVD_CHECK(new_pinned, &cuMemHostAlloc, "&cuMemHostAlloc");
HVD_CHECK(delete_pinned, &cuMemFreeHost, "&cuMemFreeHost");
HVD_CHECK(name_of_error, &cuGetErrorName, "&cuGetErrorName");
// A new function has to be checked above, too.
static_assert(sizeof(CudaDriver) == 21 * sizeof(void (*)()));
static_assert(sizeof(CudaUuid) == sizeof(CUuuid));

static_assert(kCudaSuccess == CUDA_SUCCESS);
static_assert(kCudaOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(kCudaNotReady == CUDA_ERROR_NOT_READY);
static_assert(kCudaStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kCudaEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kCudaHostPortable == CU_MEMHOSTALLOC_PORTABLE);

}  // namespace
}  // namespace hvd
