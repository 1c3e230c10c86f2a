// SPDX-License-Identifier: Apache-2.0
// CudaDriver: the calls of CUDA's driver library that lanes need.
//
// The library is looked for when a job starts, and never linked. So one build
// serves machines with and without a GPU, and needs no CUDA.
#ifndef HVD_TRANSPORT_CUDA_CUDA_DRIVER_H_
#define HVD_TRANSPORT_CUDA_CUDA_DRIVER_H_

#include <cstddef>
#include <functional>
#include <string>

#include "core/status.h"

// As cuda.h declares them.
struct CUctx_st;
struct CUevent_st;
struct CUfunc_st;
struct CUmod_st;
struct CUstream_st;

namespace hvd {

using CudaContext = CUctx_st*;
using CudaEvent = CUevent_st*;
using CudaFunction = CUfunc_st*;
using CudaModule = CUmod_st*;
using CudaStream = CUstream_st*;
// CUuuid.
struct CudaUuid {
  char bytes[16];
};
using CudaCallback = void (*)(CudaStream stream, int result, void* argument);

// Values of cuda.h's enumerations.
inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaOutOfMemory = 2;
inline constexpr int kCudaNotReady = 600;
inline constexpr unsigned kCudaStreamNonBlocking = 1;
inline constexpr unsigned kCudaEventDisableTiming = 2;
inline constexpr unsigned kCudaHostPortable = 1;

// For users whose GPU is full.
inline constexpr char kFullGpuHint[] =
    "Other processes may hold its memory: call hvd.pin_gpu(), or set "
    "TF_FORCE_GPU_ALLOW_GROWTH=true, so that TensorFlow takes what it needs.";

// Each returns a CUresult. cuda.h has their contracts, under the names that are
// in cuda_driver.cc.
struct CudaDriver {
  int (*version)(int* version) = nullptr;
  int (*push_context)(CudaContext context) = nullptr;
  int (*pop_context)(CudaContext* context) = nullptr;
  int (*current_gpu)(int* gpu) = nullptr;
  int (*uuid)(CudaUuid* uuid, int gpu) = nullptr;
  int (*context_of_stream)(CudaStream stream, CudaContext* context) = nullptr;
  int (*new_stream)(CudaStream* stream, unsigned flags) = nullptr;
  int (*delete_stream)(CudaStream stream) = nullptr;
  int (*wait_for_event)(CudaStream stream, CudaEvent event,
                        unsigned flags) = nullptr;
  int (*call_back)(CudaStream stream, CudaCallback callback, void* argument,
                   unsigned flags) = nullptr;
  int (*new_event)(CudaEvent* event, unsigned flags) = nullptr;
  int (*delete_event)(CudaEvent event) = nullptr;
  int (*record_event)(CudaEvent event, CudaStream stream) = nullptr;
  int (*query_event)(CudaEvent event) = nullptr;
  int (*copy)(void* to, const void* from, size_t bytes,
              CudaStream stream) = nullptr;
  int (*load_module)(CudaModule* module, const void* image) = nullptr;
  int (*find_kernel)(CudaFunction* kernel, CudaModule module,
                     const char* name) = nullptr;
  int (*launch)(CudaFunction kernel, unsigned grid_x, unsigned grid_y,
                unsigned grid_z, unsigned block_x, unsigned block_y,
                unsigned block_z, unsigned shared_bytes, CudaStream stream,
                void** arguments, void** extra) = nullptr;
  int (*new_pinned)(void** memory, size_t bytes, unsigned flags) = nullptr;
  int (*delete_pinned)(void* memory) = nullptr;
  int (*name_of_error)(int result, const char** name) = nullptr;

  // `find` returns the address of the function of that name, or null.
  [[nodiscard]] static Result<CudaDriver> Find(
      const std::function<void*(const char* name)>& find);

  // That of the machine, which is loaded once. Any thread. An error stays.
  [[nodiscard]] static Result<const CudaDriver*> OfMachine();

  // Ok, or an error that begins with `what`, such as "a GPU did not copy".
  [[nodiscard]] Status Check(int result, const std::string& what) const;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_CUDA_CUDA_DRIVER_H_
