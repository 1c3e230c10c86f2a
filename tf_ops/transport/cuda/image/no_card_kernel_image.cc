// SPDX-License-Identifier: Apache-2.0
// CardKernelImage of a build without CUDA's compiler.
#include "transport/cuda/card_kernels.h"

namespace hvd {

const void* CardKernelImage() { return nullptr; }

}  // namespace hvd
