// SPDX-License-Identifier: Apache-2.0
// CUDA's driver on GPUs that are made up. Built as libcuda.so.1, or linked.
#ifndef HVD_TESTS_FAKES_FAKE_CUDA_H_
#define HVD_TESTS_FAKES_FAKE_CUDA_H_

#include "fake_gpu.h"

namespace hvd {

// The address of a function of cuda.h by its name, or null.
void* FindFakeCuda(const char* name);

// The GPU of a context that is null, as that of the null stream: the first
// stream of this GPU. Null: there is none.
void SetFakeCudaDefault(FakeGpu* gpu, FakeGpu::Stream* stream);

// The driver's version from now on, as 12020 for CUDA 12.2.
void SetFakeCudaVersion(int version);

}  // namespace hvd

#endif  // HVD_TESTS_FAKES_FAKE_CUDA_H_
