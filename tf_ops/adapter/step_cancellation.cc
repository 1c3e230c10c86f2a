// SPDX-License-Identifier: Apache-2.0
// Withdraws an entry when its TensorFlow step is aborted.
#include "adapter/step_cancellation.h"

#include <algorithm>
#include <utility>

namespace hvd {
namespace {

namespace tf = ::tensorflow;

// TensorFlow's cancellation says that a step ends, not why. But the executor
// aborts the step's rendezvous with the first error before it cancels, and a
// rendezvous that was aborted answers every Send with that error.
Status FirstErrorOfStep(tf::OpKernelContext* ctx, uint64_t ticket) {
  const Status unknown = Cancelled("the step was cancelled");
  tf::RendezvousInterface* rendezvous = ctx->rendezvous();
  if (rendezvous == nullptr) return unknown;
  // A key that names no device and no edge of any graph.
  const std::string device = "/job:localhost/replica:0/task:0/device:CPU:0";
  const std::string key = tf::Rendezvous::CreateKey(
      device, 1, device, "hvd_probe_" + std::to_string(ticket),
      tf::FrameAndIter(0, 0));
  tf::Rendezvous::ParsedKey parsed;
  if (!tf::Rendezvous::ParseKey(key, &parsed).ok()) return unknown;
  const tf::Rendezvous::Args args;
  const TfStatus sent = rendezvous->Send(parsed, args, tf::Tensor(), false);
  if (sent.ok()) {
    // Not aborted: somebody cancelled from outside. Take the probe out again.
    rendezvous->RecvAsync(
        parsed, args,
        [](const TfStatus&, const tf::Rendezvous::Args&,
           const tf::Rendezvous::Args&, const tf::Tensor&, bool) {});
    return unknown;
  }
  // The first line: the rest is TensorFlow's list of operations.
  std::string text(sent.message());
  text.resize(std::min(text.find('\n'), text.size()));
  return Cancelled(std::move(text));
}

}  // namespace

StepCancellation::StepCancellation(std::shared_ptr<Runtime> runtime,
                                   int process_set_id, uint64_t ticket,
                                   tf::OpKernelContext* ctx)
    : runtime_(std::move(runtime)),
      process_set_id_(process_set_id),
      ticket_(ticket),
      manager_(ctx->cancellation_manager()),
      ctx_(ctx) {}

bool StepCancellation::Register() {
  if (manager_ == nullptr) return true;
  token_ = manager_->get_cancellation_token();
  return manager_->RegisterCallback(
      token_, [self = shared_from_this()] { self->OnCancel(); });
}

void StepCancellation::Enqueued() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    enqueued_ = true;
    if (!cancelled_) return;
  }
  runtime_->Cancel(process_set_id_, ticket_, why_);
}

void StepCancellation::OnCancel() {
  {
    // Held while the context is read: done must not free it meanwhile.
    std::lock_guard<std::mutex> lock(mutex_);
    if (ctx_ == nullptr) return;
    why_ = FirstErrorOfStep(ctx_, ticket_);
    cancelled_ = true;
    if (!enqueued_) return;
  }
  runtime_->Cancel(process_set_id_, ticket_, why_);
}

void StepCancellation::Finish() {
  // Not DeregisterCallback: it waits for the callbacks of all other kernels,
  // and this is the background thread.
  if (manager_ != nullptr) manager_->TryDeregisterCallback(token_);
  std::lock_guard<std::mutex> lock(mutex_);
  ctx_ = nullptr;
}

Status StepCancellation::Why() {
  std::lock_guard<std::mutex> lock(mutex_);
  return ctx_ == nullptr ? why_ : FirstErrorOfStep(ctx_, ticket_);
}

}  // namespace hvd
