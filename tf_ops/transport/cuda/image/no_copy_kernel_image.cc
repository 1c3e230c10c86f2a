// SPDX-License-Identifier: Apache-2.0
// CopyKernelImage of a build without CUDA's compiler.
#include "transport/cuda/copy_kernels.h"

namespace hvd {

const void* CopyKernelImage() { return nullptr; }

}  // namespace hvd
