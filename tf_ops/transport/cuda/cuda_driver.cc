// SPDX-License-Identifier: Apache-2.0
// Finds the functions in libcuda.so.1.
#include "transport/cuda/cuda_driver.h"

#include <dlfcn.h>

#include "transport/cuda/found_functions.h"

namespace hvd {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";

Result<CudaDriver> Load() {
  // The library stays loaded: its threads may run to the process's end.
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    return FailedPrecondition(
        std::string("tensors on a GPU need NVIDIA's driver, and ") + kLibrary +
        " cannot be loaded: " + (why == nullptr ? "no reason given" : why));
  }
  return CudaDriver::Find(
      [library](const char* name) { return dlsym(library, name); });
}

}  // namespace

Result<CudaDriver> CudaDriver::Find(
    const std::function<void*(const char* name)>& find) {
  CudaDriver driver;
  FoundFunctions found(find);
  found.Set(&driver.version, "cuDriverGetVersion");
  found.Set(&driver.push_context, "cuCtxPushCurrent_v2");
  found.Set(&driver.pop_context, "cuCtxPopCurrent_v2");
  found.Set(&driver.current_gpu, "cuCtxGetDevice");
  found.Set(&driver.uuid, "cuDeviceGetUuid_v2");
  found.Set(&driver.context_of_stream, "cuStreamGetCtx");
  found.Set(&driver.new_stream, "cuStreamCreate");
  found.Set(&driver.delete_stream, "cuStreamDestroy_v2");
  found.Set(&driver.wait_for_event, "cuStreamWaitEvent");
  // cuLaunchHostFunc would not call back after an error of the GPU.
  found.Set(&driver.call_back, "cuStreamAddCallback");
  found.Set(&driver.new_event, "cuEventCreate");
  found.Set(&driver.delete_event, "cuEventDestroy_v2");
  found.Set(&driver.record_event, "cuEventRecord");
  found.Set(&driver.query_event, "cuEventQuery");
  found.Set(&driver.copy, "cuMemcpyAsync");
  found.Set(&driver.load_module, "cuModuleLoadData");
  found.Set(&driver.find_kernel, "cuModuleGetFunction");
  found.Set(&driver.launch, "cuLaunchKernel");
  found.Set(&driver.new_pinned, "cuMemHostAlloc");
  found.Set(&driver.delete_pinned, "cuMemFreeHost");
  found.Set(&driver.name_of_error, "cuGetErrorName");
  if (found.missing() == nullptr) return driver;
  return FailedPrecondition(std::string(kLibrary) + " has no " +
                            found.missing() +
                            "; install a newer driver of the GPU");
}

Result<const CudaDriver*> CudaDriver::OfMachine() {
  static const Result<CudaDriver> driver = Load();
  if (!driver.ok()) return driver.status();
  return &driver.value();
}

Status CudaDriver::Check(int result, const std::string& what) const {
  if (result == kCudaSuccess) return Status::Ok();
  const char* name = nullptr;
  if (name_of_error(result, &name) != kCudaSuccess || name == nullptr) {
    name = "an error of its driver";
  }
  const std::string text =
      what + ": " + name + " (" + std::to_string(result) + ").";
  return result == kCudaOutOfMemory ? ResourceExhausted(text) : Internal(text);
}

}  // namespace hvd
