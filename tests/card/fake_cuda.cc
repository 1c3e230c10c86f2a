// SPDX-License-Identifier: Apache-2.0
// A context is a card, a stream one of its streams, an event a point of one.
#include "fake_cuda.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fake_kernels.h"

// A name with internal linkage would be of no use to dlsym.
#define HVD_FAKE_CUDA extern "C" __attribute__((visibility("default"))) int

using hvd::FakeCard;

struct CUctx_st;
struct CUevent_st {
  FakeCard* card = nullptr;
  FakeCard::PointPtr point;
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

std::atomic<FakeCard*> default_card{nullptr};
std::atomic<FakeCard::Stream*> default_stream{nullptr};
thread_local std::vector<CUctx_st*> contexts;

FakeCard::Stream* StreamOf(CUstream_st* stream) {
  return stream == nullptr ? default_stream.load()
                           : reinterpret_cast<FakeCard::Stream*>(stream);
}

FakeCard* CurrentCard() {
  return contexts.empty() ? default_card.load()
                          : reinterpret_cast<FakeCard*>(contexts.back());
}

}  // namespace

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

HVD_FAKE_CUDA cuCtxGetDevice(int* card) {
  *card = 0;
  return CurrentCard() == nullptr ? kInvalidContext : kSuccess;
}

// Of the context's card, so that each card of a process has another.
HVD_FAKE_CUDA cuDeviceGetUuid_v2(char* uuid, int /*card*/) {
  const uint64_t identity = CurrentCard()->identity();
  std::memset(uuid, 0, 16);
  std::memcpy(uuid, &identity, sizeof(identity));
  return kSuccess;
}

HVD_FAKE_CUDA cuStreamGetCtx(CUstream_st* stream, CUctx_st** context) {
  const FakeCard::Stream* const of = StreamOf(stream);
  if (of == nullptr) return kInvalidContext;
  *context = reinterpret_cast<CUctx_st*>(of->card);
  return kSuccess;
}

HVD_FAKE_CUDA cuStreamCreate(CUstream_st** stream, unsigned /*flags*/) {
  FakeCard* const card = CurrentCard();
  if (card == nullptr) return kInvalidContext;
  *stream = reinterpret_cast<CUstream_st*>(card->NewStream());
  return kSuccess;
}

HVD_FAKE_CUDA cuStreamDestroy_v2(CUstream_st* stream) {
  StreamOf(stream)->card->Delete(StreamOf(stream));
  return kSuccess;
}

HVD_FAKE_CUDA cuStreamWaitEvent(CUstream_st* stream, CUevent_st* event,
                                unsigned /*flags*/) {
  StreamOf(stream)->card->QueueWait(StreamOf(stream), event->point);
  return kSuccess;
}

HVD_FAKE_CUDA cuStreamAddCallback(CUstream_st* stream,
                                  void (*callback)(CUstream_st*, int, void*),
                                  void* argument, unsigned /*flags*/) {
  StreamOf(stream)->card->QueueCall(StreamOf(stream), [=](bool has_failed) {
    callback(stream, has_failed ? kIllegalAddress : kSuccess, argument);
  });
  return kSuccess;
}

HVD_FAKE_CUDA cuEventCreate(CUevent_st** event, unsigned /*flags*/) {
  if (CurrentCard() == nullptr) return kInvalidContext;
  if (!CurrentCard()->TakeEvent()) return kOutOfMemory;
  *event = new CUevent_st{CurrentCard(), nullptr};
  return kSuccess;
}

HVD_FAKE_CUDA cuEventDestroy_v2(CUevent_st* event) {
  delete event;
  return kSuccess;
}

HVD_FAKE_CUDA cuEventRecord(CUevent_st* event, CUstream_st* stream) {
  if (event->card != StreamOf(stream)->card) return kInvalidValue;
  event->point = event->card->Record(StreamOf(stream));
  return kSuccess;
}

HVD_FAKE_CUDA cuEventQuery(CUevent_st* event) {
  if (event->point == nullptr) return kSuccess;
  const FakeCard::Point point = event->card->Look(event->point);
  if (!point.is_reached) return kNotReady;
  return point.has_failed ? kIllegalAddress : kSuccess;
}

HVD_FAKE_CUDA cuMemcpyAsync(void* to, const void* from, size_t bytes,
                            CUstream_st* stream) {
  StreamOf(stream)->card->QueueCopy(StreamOf(stream), to, from, bytes);
  return kSuccess;
}

HVD_FAKE_CUDA cuModuleLoadData(CUmod_st** module, const void* image) {
  if (image == nullptr) return kInvalidValue;
  *module = reinterpret_cast<CUmod_st*>(CurrentCard());
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
  FakeCard* const card = StreamOf(stream)->card;
  // The arguments are read now.
  card->Queue(StreamOf(stream), kernel(card, grid_x, block_x, arguments));
  return kSuccess;
}

HVD_FAKE_CUDA cuMemHostAlloc(void** memory, size_t bytes, unsigned /*flags*/) {
  *memory = CurrentCard()->AllocatePinned(bytes);
  return *memory == nullptr ? kOutOfMemory : kSuccess;
}

HVD_FAKE_CUDA cuMemFreeHost(void* memory) {
  CurrentCard()->FreePinned(memory);
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
      HVD_KNOWN(cuCtxPushCurrent_v2), HVD_KNOWN(cuCtxPopCurrent_v2),
      HVD_KNOWN(cuCtxGetDevice),      HVD_KNOWN(cuDeviceGetUuid_v2),
      HVD_KNOWN(cuStreamGetCtx),      HVD_KNOWN(cuStreamCreate),
      HVD_KNOWN(cuStreamDestroy_v2),  HVD_KNOWN(cuStreamWaitEvent),
      HVD_KNOWN(cuStreamAddCallback), HVD_KNOWN(cuEventCreate),
      HVD_KNOWN(cuEventDestroy_v2),   HVD_KNOWN(cuEventRecord),
      HVD_KNOWN(cuEventQuery),        HVD_KNOWN(cuMemcpyAsync),
      HVD_KNOWN(cuModuleLoadData),    HVD_KNOWN(cuModuleGetFunction),
      HVD_KNOWN(cuLaunchKernel),      HVD_KNOWN(cuMemHostAlloc),
      HVD_KNOWN(cuMemFreeHost),       HVD_KNOWN(cuGetErrorName),
#undef HVD_KNOWN
  };
  for (const auto& one : known) {
    if (std::strcmp(one.name, name) == 0) return one.function;
  }
  return nullptr;
}

void SetFakeCudaDefault(FakeCard* card, FakeCard::Stream* stream) {
  default_card = card;
  default_stream = stream;
}

}  // namespace hvd
