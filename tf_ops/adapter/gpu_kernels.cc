// SPDX-License-Identifier: Apache-2.0
// Registers kernels when asked to, and finds the stream of a kernel's GPU.
#include "adapter/gpu_kernels.h"

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

#include "adapter/tf_stream.h"
#include "transport/backends.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

std::vector<GpuKernel>& Added() {
  static std::vector<GpuKernel> kernels;
  return kernels;
}

void Register(const GpuKernel& kernel) {
  tf::KernelDefBuilder definition(kernel.op.c_str());
  definition.Device(tf::DEVICE_GPU);
  for (const std::string& argument : kernel.host_arguments) {
    definition.HostMemory(argument.c_str());
  }
  // TensorFlow owns the definition. The registrar itself has no state.
  tf::kernel_factory::OpKernelRegistrar(definition.Build(), kernel.op,
                                        kernel.make);
}

// Null: there is none now. The caller must not wait for it.
std::shared_ptr<void> NewGpuBuffer(tf::Allocator* allocator, size_t bytes) {
  tf::AllocationAttributes at_once;
  at_once.retry_on_failure = false;
  void* const memory = allocator->AllocateRaw(
      tf::Allocator::kAllocatorAlignment, bytes, at_once);
  if (memory == nullptr) return nullptr;
  return {memory, [allocator](void* gone) { allocator->DeallocateRaw(gone); }};
}

}  // namespace

bool AddGpuKernel(GpuKernel kernel) {
  Added().push_back(std::move(kernel));
  return true;
}

void RegisterGpuKernels() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const GpuKernel& kernel : Added()) Register(kernel);
  });
}

MemoryKind MemoryOf(const tf::DeviceType& device) {
  return device.type_string() == tf::DEVICE_GPU ? MemoryKind::kCuda
                                                : MemoryKind::kHost;
}

Result<std::shared_ptr<const void>> ReadyOf(tf::OpKernelContext* ctx,
                                            MemoryKind memory) {
  if (memory == MemoryKind::kHost) return std::shared_ptr<const void>();
  const tf::DeviceContext* const device = ctx->op_device_context();
  if (device == nullptr || device->stream() == nullptr) {
    return Internal("TensorFlow's GPU has no stream");
  }
  tf::Allocator* const allocator =
      ctx->device()->GetAllocator(tf::AllocatorAttributes());
  return MarkDeviceStream(
      PlatformStream(*device->stream()),
      [allocator](size_t bytes) { return NewGpuBuffer(allocator, bytes); });
}

}  // namespace hvd
