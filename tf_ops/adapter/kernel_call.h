// SPDX-License-Identifier: Apache-2.0
// KernelCall: the call of one run of a kernel.
#ifndef HVD_ADAPTER_KERNEL_CALL_H_
#define HVD_ADAPTER_KERNEL_CALL_H_

#include <memory>
#include <utility>

#include "adapter/collective_call.h"
#include "adapter/described_for.h"
#include "adapter/tf_compat.h"
#include "core/runtime.h"

namespace hvd {

class KernelCall : public CollectiveCall {
 public:
  // A run begins. Of the run before, the request and its number stay.
  void Begin(tensorflow::OpKernelContext* ctx);

  // Ends this run. To be set before SubmitCall.
  void set_done(tensorflow::AsyncOpKernel::DoneCallback done) {
    done_ = std::move(done);
  }

  // Whether the request was described for this set of this runtime.
  bool IsDescribedFor(const std::shared_ptr<Runtime>& runtime,
                      int set_serial) const;
  void SetDescribedFor(const std::shared_ptr<Runtime>& runtime, int set_serial);
  // The request has an error, or means nothing. It is made anew next time.
  void ForgetRequest();

 private:
  void End(const TfStatus& status) override;

  tensorflow::OpKernelContext* ctx_ = nullptr;
  tensorflow::AsyncOpKernel::DoneCallback done_;
  DescribedFor described_for_;
};

}  // namespace hvd

#endif  // HVD_ADAPTER_KERNEL_CALL_H_
