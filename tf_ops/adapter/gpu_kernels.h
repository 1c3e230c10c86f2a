// SPDX-License-Identifier: Apache-2.0
// GPU kernels: registered only in jobs whose GPUs have a lane.
#ifndef HVD_ADAPTER_GPU_KERNELS_H_
#define HVD_ADAPTER_GPU_KERNELS_H_

#include <memory>
#include <string>
#include <vector>

#include "adapter/tf_compat.h"
#include "core/status.h"
#include "core/types.h"

namespace hvd {

// A kernel whose tensors are on the GPU, but for some arguments.
struct GpuKernel {
  std::string op;
  std::vector<std::string> host_arguments;
  tensorflow::OpKernel* (*make)(tensorflow::OpKernelConstruction*);
};

// Keeps it for RegisterGpuKernels. Returns true. Called while the library is
// loaded.
bool AddGpuKernel(GpuKernel kernel);

// Where a graph or an eager call is on a GPU, TensorFlow uses these kernels
// from now on. Without them it copies tensors to the host by itself. Any
// thread; only the first call does something.
void RegisterGpuKernels();

// Where the tensors of a kernel on this device are.
[[nodiscard]] MemoryKind MemoryOf(const tensorflow::DeviceType& device);

// See Entry::ready: what the kernel's inputs and the memory of its outputs wait
// for. Null for a kernel of the CPU. Called when all of them are there.
[[nodiscard]] Result<std::shared_ptr<const void>> ReadyOf(
    tensorflow::OpKernelContext* ctx, MemoryKind memory);

}  // namespace hvd

// For GPUs. Behind `kernel`: the arguments that are in host memory.
#define HVD_ADD_GPU_KERNEL(op, kernel, ...) \
  HVD_ADD_GPU_KERNEL_AT(__COUNTER__, op, kernel, __VA_ARGS__)
#define HVD_ADD_GPU_KERNEL_AT(counter, op, kernel, ...) \
  HVD_ADD_GPU_KERNEL_NAMED(counter, op, kernel, __VA_ARGS__)
#define HVD_ADD_GPU_KERNEL_NAMED(counter, op, kernel, ...)                \
  [[maybe_unused]] const bool gpu_kernel_##counter = ::hvd::AddGpuKernel( \
      {op,                                                                \
       {__VA_ARGS__},                                                     \
       [](::tensorflow::OpKernelConstruction* ctx)                        \
           -> ::tensorflow::OpKernel* { return new kernel(ctx); }})

#endif  // HVD_ADAPTER_GPU_KERNELS_H_
