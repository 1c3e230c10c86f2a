// SPDX-License-Identifier: Apache-2.0
// InCudaContext: makes a context of CUDA the thread's, for as long as it lives.
#ifndef HVD_TRANSPORT_CUDA_CUDA_CONTEXT_H_
#define HVD_TRANSPORT_CUDA_CUDA_CONTEXT_H_

#include "core/status.h"
#include "transport/cuda/cuda_driver.h"

namespace hvd {

class InCudaContext {
 public:
  InCudaContext(const CudaDriver* driver, CudaContext context)
      : driver_(driver),
        status_(driver->Check(driver->push_context(context),
                              "a GPU's context is of no use")) {}
  ~InCudaContext() {
    CudaContext popped = nullptr;
    if (status_.ok()) (void)driver_->pop_context(&popped);
  }
  InCudaContext(const InCudaContext&) = delete;
  InCudaContext& operator=(const InCudaContext&) = delete;

  const Status& status() const { return status_; }

 private:
  const CudaDriver* const driver_;
  const Status status_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_CUDA_CUDA_CONTEXT_H_
