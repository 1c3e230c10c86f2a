// SPDX-License-Identifier: Apache-2.0
// Begins and ends the call of a kernel.
#include "adapter/kernel_call.h"

#include <utility>

namespace hvd {

namespace tf = ::tensorflow;

void KernelCall::Begin(tf::OpKernelContext* ctx) { ctx_ = ctx; }

bool KernelCall::IsDescribedFor(const std::shared_ptr<Runtime>& runtime,
                                int set_serial) const {
  return set_serial_ == set_serial && !runtime_.owner_before(runtime) &&
         !runtime.owner_before(runtime_);
}

void KernelCall::SetDescribedFor(const std::shared_ptr<Runtime>& runtime,
                                 int set_serial) {
  runtime_ = runtime;
  set_serial_ = set_serial;
}

void KernelCall::ForgetRequest() {
  entry.request = {};
  entry.signature_number = 0;
  runtime_.reset();
  set_serial_ = -1;
}

void KernelCall::End(const TfStatus& status) {
  if (!status.ok()) ctx_->SetStatus(status);
  // TensorFlow's closure must be freed earlier than the buffers.
  const tf::AsyncOpKernel::DoneCallback done = std::move(done_);
  done();
}

}  // namespace hvd
