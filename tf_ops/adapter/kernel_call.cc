// SPDX-License-Identifier: Apache-2.0
// Ends the calls of a kernel, and keeps them for its next runs.
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

std::shared_ptr<KernelCall> KernelCalls::Take() {
  std::unique_ptr<KernelCall> call;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!kept_.empty()) {
      call = std::move(kept_.back());
      kept_.pop_back();
    }
  }
  if (call == nullptr) call = std::make_unique<KernelCall>();
  return {call.release(), [calls = shared_from_this()](KernelCall* ended) {
            calls->Keep(std::unique_ptr<KernelCall>(ended));
          }};
}

void KernelCalls::Keep(std::unique_ptr<KernelCall> call) {
  // Frees tensors, maybe. Other runs must not wait for that.
  call->Reset();
  std::lock_guard<std::mutex> lock(mutex_);
  if (kept_.size() < kMostKept) kept_.push_back(std::move(call));
}

}  // namespace hvd
