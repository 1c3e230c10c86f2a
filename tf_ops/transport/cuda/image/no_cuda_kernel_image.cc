// SPDX-License-Identifier: Apache-2.0
// CudaKernelImage of a build without CUDA's compiler.
#include "transport/cuda/cuda_kernels.h"

namespace hvd {

const void* CudaKernelImage() { return nullptr; }

}  // namespace hvd
