// SPDX-License-Identifier: Apache-2.0
// CudaKernels: copies many tensors on a GPU with few launches, scales and
// converts them on the way, and adds up rows.
#ifndef HVD_TRANSPORT_CUDA_CUDA_KERNELS_H_
#define HVD_TRANSPORT_CUDA_CUDA_KERNELS_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "core/types.h"
#include "transport/cuda/cuda_driver.h"
#include "transport/device/device.h"
#include "transport/device/tile_table.h"

namespace hvd {

// What CUDA's compiler made of cuda_kernels.cu. Null: this was built without
// it.
[[nodiscard]] const void* CudaKernelImage();

// Those of a context, which is current in all calls. They stay loaded.
class CudaKernels {
 public:
  // `image` is one of CudaKernelImage. Not Ok: the driver cannot use it, such
  // as one that is older than the compiler.
  [[nodiscard]] static Result<CudaKernels> Load(const CudaDriver* driver,
                                                const void* image);

  // Queues the copies on the stream and returns. Segments may be in memory of
  // the stream's GPU, or in host memory that it can reach. Nothing is
  // allocated on the GPU. `segments` may go when it returns.
  [[nodiscard]] Status Copy(const std::vector<CopySegment>& segments,
                            const CopyOperation& operation,
                            CudaStream stream) const;

  // Queues the sums on the stream and returns. `rows` may go then.
  [[nodiscard]] Status SumRows(const std::vector<RowSums>& rows,
                               const RowSumOperation& operation,
                               CudaStream stream) const;

 private:
  using Types = std::pair<DataType, DataType>;  // from, to

  explicit CudaKernels(const CudaDriver* driver) : driver_(driver) {}

  // Launches the kernel for each table of the segments. Behind the table it
  // gets `argument`. `what` is for errors.
  template <typename Table>
  Status LaunchTables(const std::vector<typename Table::Segment>& segments,
                      int64_t tile_elements, CudaFunction kernel,
                      void* argument, const std::string& what,
                      CudaStream stream) const;

  const CudaDriver* driver_;
  CudaFunction move_few_ = nullptr, move_many_ = nullptr;
  std::map<Types, CudaFunction> convert_, sum_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_CUDA_CUDA_KERNELS_H_
