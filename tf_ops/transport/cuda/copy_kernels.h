// SPDX-License-Identifier: Apache-2.0
// Copies many tensors on a GPU with few launches, and scales and converts them
// on the way.
#ifndef HVD_TRANSPORT_CUDA_COPY_KERNELS_H_
#define HVD_TRANSPORT_CUDA_COPY_KERNELS_H_

#include <cuda_runtime.h>

#include <vector>

#include "core/status.h"
#include "core/types.h"
#include "transport/device/copy_table.h"

namespace hvd {

// What is done with each element.
struct CopyOperation {
  DataType from = DataType::kFloat32;
  DataType to = DataType::kFloat32;
  // Not 1: both types are floating.
  double scale = 1.0;
};

// Queues the copies on the stream and returns. Segments may be in memory of the
// stream's device, or in host memory that it can reach. Nothing is allocated.
// `segments` may go when it returns.
[[nodiscard]] Status LaunchCopies(const std::vector<CopySegment>& segments,
                                  const CopyOperation& operation,
                                  cudaStream_t stream);

}  // namespace hvd

#endif  // HVD_TRANSPORT_CUDA_COPY_KERNELS_H_
