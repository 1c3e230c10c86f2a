// SPDX-License-Identifier: Apache-2.0
// What benchmarks of kernels have in common: times on the GPU, and the GPU's
// name.
#ifndef HVD_BENCHMARKS_GPU_TIMING_H_
#define HVD_BENCHMARKS_GPU_TIMING_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "core/status.h"

namespace hvd {

inline void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

inline void Check(const Status& status) {
  if (status.ok()) return;
  std::printf("%s\n", status.message().c_str());
  std::exit(1);
}

// Seconds on the GPU.
inline double Timed(cudaStream_t stream, const std::function<void()>& work) {
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  Check(cudaEventRecord(begin, stream));
  work();
  Check(cudaEventRecord(end, stream));
  Check(cudaEventSynchronize(end));
  float ms = 0;
  Check(cudaEventElapsedTime(&ms, begin, end));
  Check(cudaEventDestroy(begin));
  Check(cudaEventDestroy(end));
  return ms / 1e3;
}

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// False: there is no GPU, or nothing to do.
inline bool PrintGpu(int rounds) {
  cudaDeviceProp gpu;
  if (cudaGetDeviceProperties(&gpu, 0) != cudaSuccess || rounds < 1) {
    std::printf("no GPU is visible, or the argument is no number of rounds\n");
    return false;
  }
  int runtime = 0, driver = 0;
  (void)cudaRuntimeGetVersion(&runtime);
  (void)cudaDriverGetVersion(&driver);
  std::printf("%s, CUDA runtime %d, driver %d\n", gpu.name, runtime, driver);
  return true;
}

}  // namespace hvd

#endif  // HVD_BENCHMARKS_GPU_TIMING_H_
