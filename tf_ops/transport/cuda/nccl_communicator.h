// SPDX-License-Identifier: Apache-2.0
// NcclCommunicators: communicators of NCCL, none of whose calls block.
#ifndef HVD_TRANSPORT_CUDA_NCCL_COMMUNICATOR_H_
#define HVD_TRANSPORT_CUDA_NCCL_COMMUNICATOR_H_

#include <functional>
#include <memory>
#include <string>

#include "transport/cuda/nccl_library.h"
#include "transport/device/communicator.h"

namespace hvd {

// Streams that its communicators are given are of a CudaDevice.
class NcclCommunicators final : public Communicators {
 public:
  using Find = std::function<Result<const NcclLibrary*>()>;

  // `find` is called when the library is needed first.
  explicit NcclCommunicators(Find find) : find_(std::move(find)) {}

  Result<Offer> Look(const std::shared_ptr<const void>& ready) override;
  Result<std::string> NewId() override;
  Result<std::unique_ptr<Communicator>> Connect(
      const std::string& id, int rank, int size,
      const std::shared_ptr<const void>& ready) override;
  bool Takes(DataType dtype, ReduceOp op, double scale) const override;

 private:
  const Find find_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_CUDA_NCCL_COMMUNICATOR_H_
