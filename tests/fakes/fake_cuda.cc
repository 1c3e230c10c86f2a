// SPDX-License-Identifier: Apache-2.0
// A context is a GPU, a stream one of its streams, an event a point of one.
#include "fake_cuda.h"

#include <atomic>
#include <cstring>
#include <vector>

#include "fake_kernels.h"

// A name with internal linkage would be of no use to dlsym.
#define HVD_FAKE_CUDA extern "C" __attribute__((visibility("default"))) int

using hvd::FakeGpu;

struct CUctx_st;
struct CUevent_st {
  FakeGpu* gpu = nullptr;
  FakeGpu::PointPtr point;
};
struct CUfunc_st;
struct CUmod_st;
struct CUstream_st;

namespace {

// Results of cuda.h.
constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidContext = 201;
constexpr int kNotFound = 500;
constexpr int kNotReady = 600;
constexpr int kIllegalAddress = 700;

std::atomic<FakeGpu*> default_gpu{nullptr};
std::atomic<FakeGpu::Stream*> default_stream{nullptr};
std::atomic<int> driver_version{12020};
thread_local std::vector<CUctx_st*> contexts;

FakeGpu::Stream* StreamOf(CUstream_st* stream) {
  return stream == nullptr ? default_stream.load()
                           : reinterpret_cast<FakeGpu::Stream*>(stream);
}

FakeGpu* CurrentGpu() {
  return contexts.empty() ? default_gpu.load()
                          : reinterpret_cast<FakeGpu*>(contexts.back());
}

}  // namespace

HVD_FAKE_CUDA cuDriverGetVersion(int* version) {
  *version = driver_version;
  return kSuccess;
}

HVD_FAKE_CUDA cuCtxPushCurrent_v2(CUctx_st* context) {
  if (context == nullptr) return kInvalidContext;
  contexts.push_back(context);
  return kSuccess;
}

HVD_FAKE_CUDA cuCtxPopCurrent_v2(CUctx_st** context) {
  if (contexts.empty()) return kInvalidContext;
  *context = contexts.back();
  contexts.pop_back();
  return kSuccess;
}

HVD_FAKE_CUDA cuCtxGetDevice(int* gpu) {
  *gpu = 0;
  return CurrentGpu() == nullptr ? kInvalidContext : kSuccess;
}

// The identity of the context's GPU, so that each GPU of a process has another.
HVD_FAKE_CUDA cuDeviceGetUuid_v2(char* uuid, int /*GPU*/) {
  const uint64_t identity = CurrentGpu()->identity();
  std::memset(uuid, 0, 16);
  std::memcpy(uuid, &identity, sizeof(identity));
  return kSuccess;
}

HVD_FAKE_CUDA cuStreamGetCtx(CUstream_st* stream, CUctx_st** context) {
  const FakeGpu::Stream* const of = StreamOf(stream);
  if (of == nullptr) return kInvalidContext;
  *context = reinterpret_cast<CUctx_st*>(of->gpu);
  return kSuccess;
}

HVD_FAKE_CUDA cuStreamCreate(CUstream_st** stream, unsigned /*flags*/) {
  FakeGpu* const gpu = CurrentGpu();
  if (gpu == nullptr) return kInvalidContext;
  *stream = reinterpret_cast<CUstream_st*>(gpu->NewStream());
  return kSuccess;
}

HVD_FAKE_CUDA cuStreamDestroy_v2(CUstream_st* stream) {
  StreamOf(stream)->gpu->Delete(StreamOf(stream));
  return kSuccess;
}

HVD_FAKE_CUDA cuStreamWaitEvent(CUstream_st* stream, CUevent_st* event,
                                unsigned /*flags*/) {
  StreamOf(stream)->gpu->QueueWait(StreamOf(stream), event->point);
  return kSuccess;
}

HVD_FAKE_CUDA cuStreamAddCallback(CUstream_st* stream,
                                  void (*callback)(CUstream_st*, int, void*),
                                  void* argument, unsigned /*flags*/) {
  StreamOf(stream)->gpu->QueueCall(StreamOf(stream), [=](bool has_failed) {
    callback(stream, has_failed ? kIllegalAddress : kSuccess, argument);
  });
  return kSuccess;
}

HVD_FAKE_CUDA cuEventCreate(CUevent_st** event, unsigned /*flags*/) {
  if (CurrentGpu() == nullptr) return kInvalidContext;
  if (!CurrentGpu()->TakeEvent()) return kOutOfMemory;
  *event = new CUevent_st{CurrentGpu(), nullptr};
  return kSuccess;
}

HVD_FAKE_CUDA cuEventDestroy_v2(CUevent_st* event) {
  delete event;
  return kSuccess;
}

HVD_FAKE_CUDA cuEventRecord(CUevent_st* event, CUstream_st* stream) {
  if (event->gpu != StreamOf(stream)->gpu) return kInvalidValue;
  event->point = event->gpu->Record(StreamOf(stream));
  return kSuccess;
}

HVD_FAKE_CUDA cuEventQuery(CUevent_st* event) {
  if (event->point == nullptr) return kSuccess;
  const FakeGpu::Point point = event->gpu->Look(event->point);
  if (!point.is_reached) return kNotReady;
  return point.has_failed ? kIllegalAddress : kSuccess;
}

HVD_FAKE_CUDA cuMemcpyAsync(void* to, const void* from, size_t bytes,
                            CUstream_st* stream) {
  StreamOf(stream)->gpu->QueueCopy(StreamOf(stream), to, from, bytes);
  return kSuccess;
}

HVD_FAKE_CUDA cuModuleLoadData(CUmod_st** module, const void* image) {
  if (image == nullptr) return kInvalidValue;
  *module = reinterpret_cast<CUmod_st*>(CurrentGpu());
  return *module == nullptr ? kInvalidContext : kSuccess;
}

HVD_FAKE_CUDA cuModuleGetFunction(CUfunc_st** function, CUmod_st* module,
                                  const char* name) {
  if (module == nullptr) return kInvalidValue;
  const hvd::FakeKernel* const kernel = hvd::FindFakeKernel(name);
  *function =
      reinterpret_cast<CUfunc_st*>(const_cast<hvd::FakeKernel*>(kernel));
  return kernel == nullptr ? kNotFound : kSuccess;
}

HVD_FAKE_CUDA cuLaunchKernel(CUfunc_st* function, unsigned grid_x,
                             unsigned /*grid_y*/, unsigned /*grid_z*/,
                             unsigned block_x, unsigned /*block_y*/,
                             unsigned /*block_z*/, unsigned /*shared_bytes*/,
                             CUstream_st* stream, void** arguments,
                             void** /*extra*/) {
  const auto& kernel = *reinterpret_cast<hvd::FakeKernel*>(function);
  FakeGpu* const gpu = StreamOf(stream)->gpu;
  // The arguments are read now.
  gpu->Queue(StreamOf(stream), kernel(gpu, grid_x, block_x, arguments));
  return kSuccess;
}

HVD_FAKE_CUDA cuMemHostAlloc(void** memory, size_t bytes, unsigned /*flags*/) {
  *memory = CurrentGpu()->AllocatePinned(bytes);
  return *memory == nullptr ? kOutOfMemory : kSuccess;
}

HVD_FAKE_CUDA cuMemFreeHost(void* memory) {
  CurrentGpu()->FreePinned(memory);
  return kSuccess;
}

HVD_FAKE_CUDA cuGetErrorName(int result, const char** name) {
  switch (result) {
    case kInvalidValue:
      *name = "CUDA_ERROR_INVALID_VALUE";
      return kSuccess;
    case kOutOfMemory:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      return kSuccess;
    case kInvalidContext:
      *name = "CUDA_ERROR_INVALID_CONTEXT";
      return kSuccess;
    case kIllegalAddress:
      *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
      return kSuccess;
    default:
      return kInvalidValue;
  }
}

namespace hvd {

void* FindFakeCuda(const char* name) {
  const struct {
    const char* name;
    void* function;
  } known[] = {
#define HVD_KNOWN(function) {#function, reinterpret_cast<void*>(&function)}
      HVD_KNOWN(cuDriverGetVersion),  HVD_KNOWN(cuCtxPushCurrent_v2),
      HVD_KNOWN(cuCtxPopCurrent_v2),  HVD_KNOWN(cuCtxGetDevice),
      HVD_KNOWN(cuDeviceGetUuid_v2),  HVD_KNOWN(cuStreamGetCtx),
      HVD_KNOWN(cuStreamCreate),      HVD_KNOWN(cuStreamDestroy_v2),
      HVD_KNOWN(cuStreamWaitEvent),   HVD_KNOWN(cuStreamAddCallback),
      HVD_KNOWN(cuEventCreate),       HVD_KNOWN(cuEventDestroy_v2),
      HVD_KNOWN(cuEventRecord),       HVD_KNOWN(cuEventQuery),
      HVD_KNOWN(cuMemcpyAsync),       HVD_KNOWN(cuModuleLoadData),
      HVD_KNOWN(cuModuleGetFunction), HVD_KNOWN(cuLaunchKernel),
      HVD_KNOWN(cuMemHostAlloc),      HVD_KNOWN(cuMemFreeHost),
      HVD_KNOWN(cuGetErrorName),
#undef HVD_KNOWN
  };
  for (const auto& one : known) {
    if (std::strcmp(one.name, name) == 0) return one.function;
  }
  return nullptr;
}

void SetFakeCudaDefault(FakeGpu* gpu, FakeGpu::Stream* stream) {
  default_gpu = gpu;
  default_stream = stream;
}

void SetFakeCudaVersion(int version) { driver_version = version; }

}  // namespace hvd
