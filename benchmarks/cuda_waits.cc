// SPDX-License-Identifier: Apache-2.0
// Counts the calls of CUDA's driver that may wait for a GPU, by thread.
//
// `make compile-gpu` makes a library of it, which CUDA loads, and which needs
// CUPTI of CUDA 13. A program calls CudaWaitsBegin and CudaWaitsPrint in it, as
// gpu_training.py --cuda-waits does:
//
//     waits=$PWD/build/cuda/libcuda_waits.so
//     CUDA_INJECTION64_PATH=$waits python gpu_training.py --cuda-waits $waits
#include <cupti.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace {

using Clock = std::chrono::steady_clock;

struct Calls {
  long count = 0;
  double total_us = 0;
  double longest_us = 0;
};

std::mutex mutex;
bool counts = false;
std::map<std::pair<std::string, std::string>, Calls> calls_of;

const CUpti_CallbackId kMayWait[] = {
    CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize,
    CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuEventSynchronize,
    CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize,
    CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoD_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoD_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemcpy,
    CUPTI_DRIVER_TRACE_CBID_cuMemsetD8_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemsetD32_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemAllocHost_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemHostAlloc,
    CUPTI_DRIVER_TRACE_CBID_cuMemFreeHost,
    CUPTI_DRIVER_TRACE_CBID_cuMemHostRegister_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemHostUnregister,
    CUPTI_DRIVER_TRACE_CBID_cuModuleLoadData,
    CUPTI_DRIVER_TRACE_CBID_cuModuleUnload,
    CUPTI_DRIVER_TRACE_CBID_cuLibraryLoadData,
    // These wait for nothing; they show that the table has what it should.
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchHostFunc,
    CUPTI_DRIVER_TRACE_CBID_cuEventRecord,
    CUPTI_DRIVER_TRACE_CBID_cuEventQuery,
    CUPTI_DRIVER_TRACE_CBID_cuStreamWaitEvent,
};

std::string ThreadName() {
  char name[32] = "?";
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return name;
}

void CUPTIAPI OnCall(void*, CUpti_CallbackDomain, CUpti_CallbackId,
                     const void* given) {
  thread_local Clock::time_point began;
  const auto* call = static_cast<const CUpti_CallbackData*>(given);
  if (call->callbackSite == CUPTI_API_ENTER) {
    began = Clock::now();
    return;
  }
  const std::chrono::duration<double, std::micro> took = Clock::now() - began;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!counts) return;
  Calls& calls = calls_of[{ThreadName(), call->functionName}];
  ++calls.count;
  calls.total_us += took.count();
  calls.longest_us = std::max(calls.longest_us, took.count());
}

}  // namespace

// CUDA calls it, once it has loaded this.
extern "C" int InitializeInjection() {
  CUpti_SubscriberHandle subscriber = nullptr;
  if (cuptiSubscribe(&subscriber, &OnCall, nullptr) != CUPTI_SUCCESS) {
    std::fprintf(stderr, "CUPTI did not subscribe\n");
    return 0;
  }
  for (const CUpti_CallbackId id : kMayWait) {
    (void)cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id);
  }
  return 1;
}

extern "C" void CudaWaitsBegin() {
  const std::lock_guard<std::mutex> lock(mutex);
  counts = true;
  calls_of.clear();
}

// What was called since CudaWaitsBegin, and how often in each of `steps`.
extern "C" void CudaWaitsPrint(int steps) {
  const std::lock_guard<std::mutex> lock(mutex);
  counts = false;
  std::printf("| thread | call | of a step | us, mean | us, longest |\n");
  std::printf("|---|---|---|---|---|\n");
  for (const auto& [key, calls] : calls_of) {
    std::printf("| %s | %s | %.2f | %.1f | %.0f |\n", key.first.c_str(),
                key.second.c_str(), static_cast<double>(calls.count) / steps,
                calls.total_us / calls.count, calls.longest_us);
  }
  std::fflush(stdout);
}
