// SPDX-License-Identifier: Apache-2.0
// CopyKernelImage of a build that has CUDA's compiler: the file that it wrote.
#include "transport/cuda/copy_kernels.h"

// HVD_COPY_KERNELS is the file's name in quotes.
__asm__(
    ".pushsection .rodata\n"
    ".balign 64\n"
    ".hidden hvd_copy_kernel_image\n"
    ".globl hvd_copy_kernel_image\n"
    "hvd_copy_kernel_image:\n"
    ".incbin \"" HVD_COPY_KERNELS
    "\"\n"
    ".byte 0\n"
    ".popsection\n");

extern "C" __attribute__((visibility("hidden")))
const unsigned char hvd_copy_kernel_image[];

namespace hvd {

const void* CopyKernelImage() { return hvd_copy_kernel_image; }

}  // namespace hvd
