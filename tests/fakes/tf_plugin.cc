// SPDX-License-Identifier: Apache-2.0
// The GPU that is made up, as TensorFlow's device GPU:0.
//
// A plugin by TensorFlow's C interface for devices. TensorFlow's own kernels
// for GPUs are not in its builds for CPUs, so a graph can do little on it but
// copy, and call hvd_tf.
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "fake_cuda.h"
#include "fake_gpu.h"
#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tensorflow/c/tf_status.h"

struct SP_Event_st {
  hvd::FakeGpu::PointPtr point;
};

namespace {

using hvd::FakeGpu;
using Stream = FakeGpu::Stream;

// It is never destroyed: TensorFlow's threads use it to the end.
FakeGpu* Gpu() {
  static FakeGpu* const gpu = [] {
    auto* const made = new FakeGpu(size_t{256} << 20);
    made->WorkAlone();
    return made;
  }();
  return gpu;
}

Stream* Of(SP_Stream stream) { return reinterpret_cast<Stream*>(stream); }

void Ok(TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

void WaitFor(const FakeGpu::PointPtr& point) {
  while (!Gpu()->Look(point).is_reached) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

// A stream of its own, for copies that TensorFlow waits for.
void CopyNow(void* to, const void* from, uint64_t bytes) {
  Stream* const stream = Gpu()->NewStream();
  Gpu()->QueueCopy(stream, to, from, bytes, /*is_of_any_memory=*/true);
  WaitFor(Gpu()->Record(stream));
  Gpu()->Delete(stream);
}

void CopyLater(SP_Stream stream, void* to, const void* from, uint64_t bytes) {
  Gpu()->QueueCopy(Of(stream), to, from, bytes, /*is_of_any_memory=*/true);
}

// --- Memory ---

void Allocate(const SP_Device*, uint64_t bytes, int64_t,
              SP_DeviceMemoryBase* memory) {
  memory->opaque = Gpu()->Allocate(bytes);
  memory->size = memory->opaque == nullptr ? 0 : bytes;
}

void Deallocate(const SP_Device*, SP_DeviceMemoryBase* memory) {
  if (memory->opaque != nullptr) Gpu()->Free(memory->opaque);
  memory->opaque = nullptr;
}

void* AllocateHost(const SP_Device*, uint64_t bytes) {
  return Gpu()->AllocatePinned(bytes);
}

void DeallocateHost(const SP_Device*, void* memory) {
  Gpu()->FreePinned(memory);
}

void* AllocateUnified(const SP_Device*, uint64_t) { return nullptr; }
void DeallocateUnified(const SP_Device*, void*) {}
TF_Bool AllocatorStats(const SP_Device*, SP_AllocatorStats*) { return 0; }

TF_Bool MemoryUsage(const SP_Device*, int64_t* free, int64_t* total) {
  *free = *total = int64_t{128} << 20;
  return 1;
}

// --- Streams and events ---

// The first is the one that TensorFlow computes on. TensorFlow does not tell
// its handle, so kernels take it for the null stream.
void CreateStream(const SP_Device*, SP_Stream* stream, TF_Status* status) {
  static Stream* const first = [] {
    Stream* const made = Gpu()->NewStream();
    hvd::SetFakeCudaDefault(Gpu(), made);
    return made;
  }();
  static bool is_given = false;
  *stream = reinterpret_cast<SP_Stream>(is_given ? Gpu()->NewStream() : first);
  is_given = true;
  Ok(status);
}

void DestroyStream(const SP_Device*, SP_Stream stream) {
  Gpu()->Delete(Of(stream));
}

void DependOn(const SP_Device*, SP_Stream dependent, SP_Stream other,
              TF_Status* status) {
  Gpu()->QueueWait(Of(dependent), Gpu()->Record(Of(other)));
  Ok(status);
}

void StreamStatus(const SP_Device*, SP_Stream, TF_Status* status) {
  Ok(status);
}

void CreateEvent(const SP_Device*, SP_Event* event, TF_Status* status) {
  *event = new SP_Event_st;
  Ok(status);
}

void DestroyEvent(const SP_Device*, SP_Event event) { delete event; }

SE_EventStatus EventStatus(const SP_Device*, SP_Event event) {
  if (event->point == nullptr) return SE_EVENT_COMPLETE;
  return Gpu()->Look(event->point).is_reached ? SE_EVENT_COMPLETE
                                              : SE_EVENT_PENDING;
}

void RecordEvent(const SP_Device*, SP_Stream stream, SP_Event event,
                 TF_Status* status) {
  event->point = Gpu()->Record(Of(stream));
  Ok(status);
}

void WaitForEvent(const SP_Device* const, SP_Stream stream, SP_Event event,
                  TF_Status* const status) {
  Gpu()->QueueWait(Of(stream), event->point);
  Ok(status);
}

void BlockForEvent(const SP_Device*, SP_Event event, TF_Status* status) {
  if (event->point != nullptr) WaitFor(event->point);
  Ok(status);
}

void BlockUntilDone(const SP_Device*, SP_Stream stream, TF_Status* status) {
  WaitFor(Gpu()->Record(Of(stream)));
  Ok(status);
}

void SynchronizeAll(const SP_Device*, TF_Status* status) { Ok(status); }

TF_Bool HostCallback(const SP_Device*, SP_Stream stream,
                     SE_StatusCallbackFn call, void* argument) {
  Gpu()->QueueCall(Of(stream), [=](bool) {
    TF_Status* const status = TF_NewStatus();
    call(argument, status);
    TF_DeleteStatus(status);
  });
  return 1;
}

// --- Copies ---

void CopyOut(const SP_Device*, SP_Stream stream, void* to,
             const SP_DeviceMemoryBase* from, uint64_t bytes,
             TF_Status* status) {
  CopyLater(stream, to, from->opaque, bytes);
  Ok(status);
}

void CopyIn(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to,
            const void* from, uint64_t bytes, TF_Status* status) {
  CopyLater(stream, to->opaque, from, bytes);
  Ok(status);
}

void CopyWithin(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to,
                const SP_DeviceMemoryBase* from, uint64_t bytes,
                TF_Status* status) {
  CopyLater(stream, to->opaque, from->opaque, bytes);
  Ok(status);
}

void CopyOutNow(const SP_Device*, void* to, const SP_DeviceMemoryBase* from,
                uint64_t bytes, TF_Status* status) {
  CopyNow(to, from->opaque, bytes);
  Ok(status);
}

void CopyInNow(const SP_Device*, SP_DeviceMemoryBase* to, const void* from,
               uint64_t bytes, TF_Status* status) {
  CopyNow(to->opaque, from, bytes);
  Ok(status);
}

void CopyWithinNow(const SP_Device*, SP_DeviceMemoryBase* to,
                   const SP_DeviceMemoryBase* from, uint64_t bytes,
                   TF_Status* status) {
  CopyNow(to->opaque, from->opaque, bytes);
  Ok(status);
}

void Fill(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to,
          uint8_t pattern, uint64_t bytes, TF_Status* status) {
  Gpu()->Queue(Of(stream), [place = to->opaque, pattern, bytes] {
    const std::vector<uint8_t> values(bytes, pattern);
    Gpu()->Write(place, values.data(), bytes);
    return true;
  });
  Ok(status);
}

void FillZero(const SP_Device* device, SP_Stream stream,
              SP_DeviceMemoryBase* to, uint64_t bytes, TF_Status* status) {
  Fill(device, stream, to, 0, bytes, status);
}

void Fill32(const SP_Device*, SP_Stream, SP_DeviceMemoryBase*, uint32_t,
            uint64_t, TF_Status* status) {
  TF_SetStatus(status, TF_UNIMPLEMENTED, "no fill by 32 bits");
}

// --- Timers: nothing is measured ---

void CreateTimer(const SP_Device*, SP_Timer*, TF_Status* status) { Ok(status); }
void DestroyTimer(const SP_Device*, SP_Timer) {}
void UseTimer(const SP_Device*, SP_Stream, SP_Timer, TF_Status* status) {
  Ok(status);
}
uint64_t NoTime(SP_Timer) { return 0; }

// --- What TensorFlow asks for when it loads the plugin ---

void DeviceCount(const SP_Platform*, int* count, TF_Status* status) {
  *count = 1;
  Ok(status);
}

void CreateDevice(const SP_Platform*, SE_CreateDeviceParams* params,
                  TF_Status* status) {
  params->device->struct_size = SP_DEVICE_STRUCT_SIZE;
  params->device->ordinal = params->ordinal;
  params->device->hardware_name = "made up";
  params->device->device_vendor = "hvd_tf";
  params->device->pci_bus_id = "0000:00:00.0";
  Ok(status);
}
void DestroyDevice(const SP_Platform*, SP_Device*) {}

void CreateDeviceFns(const SP_Platform*, SE_CreateDeviceFnsParams* params,
                     TF_Status* status) {
  params->device_fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
  Ok(status);
}
void DestroyDeviceFns(const SP_Platform*, SP_DeviceFns*) {}

void CreateExecutor(const SP_Platform*, SE_CreateStreamExecutorParams* params,
                    TF_Status* status) {
  SP_StreamExecutor& executor = *params->stream_executor;
  executor.struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  executor.allocate = Allocate;
  executor.deallocate = Deallocate;
  executor.host_memory_allocate = AllocateHost;
  executor.host_memory_deallocate = DeallocateHost;
  executor.unified_memory_allocate = AllocateUnified;
  executor.unified_memory_deallocate = DeallocateUnified;
  executor.get_allocator_stats = AllocatorStats;
  executor.device_memory_usage = MemoryUsage;
  executor.create_stream = CreateStream;
  executor.destroy_stream = DestroyStream;
  executor.create_stream_dependency = DependOn;
  executor.get_stream_status = StreamStatus;
  executor.create_event = CreateEvent;
  executor.destroy_event = DestroyEvent;
  executor.get_event_status = EventStatus;
  executor.record_event = RecordEvent;
  executor.wait_for_event = WaitForEvent;
  executor.create_timer = CreateTimer;
  executor.destroy_timer = DestroyTimer;
  executor.start_timer = UseTimer;
  executor.stop_timer = UseTimer;
  executor.memcpy_dtoh = CopyOut;
  executor.memcpy_htod = CopyIn;
  executor.memcpy_dtod = CopyWithin;
  executor.sync_memcpy_dtoh = CopyOutNow;
  executor.sync_memcpy_htod = CopyInNow;
  executor.sync_memcpy_dtod = CopyWithinNow;
  executor.block_host_for_event = BlockForEvent;
  executor.block_host_until_done = BlockUntilDone;
  executor.synchronize_all_activity = SynchronizeAll;
  executor.mem_zero = FillZero;
  executor.memset = Fill;
  executor.memset32 = Fill32;
  executor.host_callback = HostCallback;
  Ok(status);
}
void DestroyExecutor(const SP_Platform*, SP_StreamExecutor*) {}

void CreateTimerFns(const SP_Platform*, SP_TimerFns* timer, TF_Status* status) {
  timer->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
  timer->nanoseconds = NoTime;
  Ok(status);
}
void DestroyTimerFns(const SP_Platform*, SP_TimerFns*) {}

void DestroyPlatform(SP_Platform*) {}
void DestroyPlatformFns(SP_PlatformFns*) {}

}  // namespace

extern "C" __attribute__((visibility("default"))) void SE_InitPlugin(
    SE_PlatformRegistrationParams* params, TF_Status* status) {
  params->struct_size = SE_PLATFORM_REGISTRATION_PARAMS_STRUCT_SIZE;
  params->major_version = SE_MAJOR;
  params->minor_version = SE_MINOR;
  params->patch_version = SE_PATCH;
  params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  params->platform->name = "FAKE";
  params->platform->type = "GPU";
  params->platform->supports_unified_memory = 0;
  params->platform->use_bfc_allocator = 1;
  params->platform->force_memory_growth = 1;
  params->destroy_platform = DestroyPlatform;
  params->destroy_platform_fns = DestroyPlatformFns;
  SP_PlatformFns& functions = *params->platform_fns;
  functions.struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  functions.get_device_count = DeviceCount;
  functions.create_device = CreateDevice;
  functions.destroy_device = DestroyDevice;
  functions.create_device_fns = CreateDeviceFns;
  functions.destroy_device_fns = DestroyDeviceFns;
  functions.create_stream_executor = CreateExecutor;
  functions.destroy_stream_executor = DestroyExecutor;
  functions.create_timer_fns = CreateTimerFns;
  functions.destroy_timer_fns = DestroyTimerFns;
  Ok(status);
}
