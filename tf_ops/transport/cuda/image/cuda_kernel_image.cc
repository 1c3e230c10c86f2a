// SPDX-License-Identifier: Apache-2.0
// CudaKernelImage of a build that has CUDA's compiler: the file that it wrote.
#include "transport/cuda/cuda_kernels.h"

// HVD_CUDA_KERNELS is the file's name in quotes.
__asm__(
    ".pushsection .rodata\n"
    ".balign 64\n"
    ".hidden hvd_cuda_kernel_image\n"
    ".globl hvd_cuda_kernel_image\n"
    "hvd_cuda_kernel_image:\n"
    ".incbin \"" HVD_CUDA_KERNELS
    "\"\n"
    ".byte 0\n"
    ".popsection\n");

extern "C" __attribute__((visibility("hidden")))
const unsigned char hvd_cuda_kernel_image[];

namespace hvd {

const void* CudaKernelImage() { return hvd_cuda_kernel_image; }

}  // namespace hvd
