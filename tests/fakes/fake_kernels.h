// SPDX-License-Identifier: Apache-2.0
// Our kernels on a GPU that is made up: each thread's part by the same
// functions, one after the other.
#ifndef HVD_TESTS_FAKES_FAKE_KERNELS_H_
#define HVD_TESTS_FAKES_FAKE_KERNELS_H_

#include <functional>
#include <string>

#include "fake_gpu.h"

namespace hvd {

// Reads a launch's arguments, and returns the work of the stream.
using FakeKernel = std::function<FakeGpu::Work(
    FakeGpu* gpu, unsigned blocks, unsigned threads, void** arguments)>;

// That of cuda_kernels.cu with this name, or null.
const FakeKernel* FindFakeKernel(const std::string& name);

}  // namespace hvd

#endif  // HVD_TESTS_FAKES_FAKE_KERNELS_H_
