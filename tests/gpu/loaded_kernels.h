// SPDX-License-Identifier: Apache-2.0
// The copy kernels, loaded for the GPU of a program of CUDA's runtime.
#ifndef HVD_TESTS_GPU_LOADED_KERNELS_H_
#define HVD_TESTS_GPU_LOADED_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#include "core/status.h"
#include "transport/cuda/cuda_driver.h"
#include "transport/cuda/cuda_kernels.h"

namespace hvd {

inline const CudaKernels& LoadedKernels() {
  static const Result<CudaKernels> kernels = [] {
    (void)cudaFree(nullptr);  // now there is a context
    const Result<const CudaDriver*> driver = CudaDriver::OfMachine();
    return driver.ok() ? CudaKernels::Load(driver.value(), CudaKernelImage())
                       : Result<CudaKernels>(driver.status());
  }();
  if (!kernels.ok()) {
    std::printf("%s\n", kernels.status().message().c_str());
    std::exit(1);
  }
  return kernels.value();
}

}  // namespace hvd

#endif  // HVD_TESTS_GPU_LOADED_KERNELS_H_
