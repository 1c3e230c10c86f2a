// SPDX-License-Identifier: Apache-2.0
// Begins and ends the call of a kernel.
#include "adapter/kernel_call.h"

#include <utility>

namespace hvd {

namespace tf = ::tensorflow;

void KernelCall::Begin(tf::OpKernelContext* ctx) { ctx_ = ctx; }

bool KernelCall::IsDescribedFor(const std::shared_ptr<Runtime>& runtime,
                                int set_serial) const {
  return described_for_.Is(runtime, set_serial);
}

void KernelCall::SetDescribedFor(const std::shared_ptr<Runtime>& runtime,
                                 int set_serial) {
  described_for_ = {runtime, set_serial};
}

void KernelCall::ForgetRequest() {
  entry.request = {};
  entry.signature_number = 0;
  described_for_ = {};
}

void KernelCall::End(const TfStatus& status) {
  if (!status.ok()) ctx_->SetStatus(status);
  // TensorFlow's closure must be freed earlier than the buffers.
  const tf::AsyncOpKernel::DoneCallback done = std::move(done_);
  done();
}

}  // namespace hvd
