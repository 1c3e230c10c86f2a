// SPDX-License-Identifier: Apache-2.0
// HVD_HOST_DEVICE: marks functions that run on the host and on a GPU.
//
// CUDA's compiler makes both. For any other compiler the mark is nothing, so
// that tests run the same code where there is no GPU.
#ifndef HVD_CPU_HOST_DEVICE_H_
#define HVD_CPU_HOST_DEVICE_H_

#ifdef __CUDACC__
#define HVD_HOST_DEVICE __host__ __device__
#else
#define HVD_HOST_DEVICE
#endif

#endif  // HVD_CPU_HOST_DEVICE_H_
