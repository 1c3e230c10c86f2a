// SPDX-License-Identifier: Apache-2.0
// CardKernelImage of a build that has CUDA's compiler: the file that it wrote.
#include "transport/cuda/card_kernels.h"

// HVD_CARD_KERNELS is the file's name in quotes.
__asm__(
    ".pushsection .rodata\n"
    ".balign 64\n"
    ".hidden hvd_card_kernel_image\n"
    ".globl hvd_card_kernel_image\n"
    "hvd_card_kernel_image:\n"
    ".incbin \"" HVD_CARD_KERNELS
    "\"\n"
    ".byte 0\n"
    ".popsection\n");

extern "C" __attribute__((visibility("hidden")))
const unsigned char hvd_card_kernel_image[];

namespace hvd {

const void* CardKernelImage() { return hvd_card_kernel_image; }

}  // namespace hvd
