// SPDX-License-Identifier: Apache-2.0
// A sum of a tensor in a GPU's memory, as a framework asks for it.
#ifndef HVD_TESTS_GPU_GPU_CALL_H_
#define HVD_TESTS_GPU_GPU_CALL_H_

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "core/runtime.h"
#include "transport/backends.h"

namespace hvd {

constexpr int kNoGpu = 77;  // the exit status where there is none

inline void CheckCuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

inline void NeedGpu() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) return;
  std::printf("no GPU is visible\n");
  std::exit(kNoGpu);
}

// A stream, as a framework has one for its kernels.
class FrameworkStream {
 public:
  FrameworkStream() {
    CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~FrameworkStream() { (void)cudaStreamDestroy(stream_); }
  FrameworkStream(const FrameworkStream&) = delete;
  FrameworkStream& operator=(const FrameworkStream&) = delete;

  cudaStream_t get() const { return stream_; }
  std::shared_ptr<const void> Mark() const {
    auto mark = MarkDeviceStream(stream_, [](size_t bytes) {
      void* memory = nullptr;
      (void)cudaMalloc(&memory, bytes);
      return std::shared_ptr<void>(memory,
                                   [](void* gone) { (void)cudaFree(gone); });
    });
    if (mark.ok()) return mark.value();
    std::printf("%s\n", mark.status().message().c_str());
    std::exit(1);
  }

 private:
  cudaStream_t stream_ = nullptr;
};

// The sum over ranks of `elements` elements at `memory`, in place. It starts
// when the stream has come to its place. A call outlives its end.
class GpuSum {
 public:
  GpuSum(Runtime* runtime, const FrameworkStream& stream,
         const std::string& name, DataType dtype, void* memory,
         int64_t elements) {
    auto entry = std::make_shared<Entry>();
    entry->request.key.name = name;
    Signature& signature = entry->request.signature;
    signature.memory = MemoryKind::kCuda;
    signature.dtype = dtype;
    signature.shapes = {{elements}};
    entry->inputs = {memory};
    entry->outputs = {memory};
    entry->ready = stream.Mark();
    entry->ticket = runtime->NewTicket();
    entry->done = [this](const Status& status) { ended_.set_value(status); };
    runtime->Enqueue(*runtime->process_set(0), std::move(entry));
  }
  GpuSum(const GpuSum&) = delete;
  GpuSum& operator=(const GpuSum&) = delete;

  Status Wait() { return result_.get(); }

 private:
  std::promise<Status> ended_;
  std::future<Status> result_ = ended_.get_future();
};

}  // namespace hvd

#endif  // HVD_TESTS_GPU_GPU_CALL_H_
