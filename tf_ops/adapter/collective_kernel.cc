// SPDX-License-Identifier: Apache-2.0
// What the kernels of all data verbs have in common.
#include "adapter/collective_kernel.h"

#include <algorithm>
#include <utility>

#include "adapter/global_runtime.h"
#include "adapter/step_cancellation.h"
#include "adapter/tf_bridge.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

// Data verbs are stateless, so TensorFlow tries to fold one whose input is a
// constant: while a graph is optimised (no step, no cancellation and no
// function library) or built (a step of its own number). Ranks fold at
// different times and as often as they retrace, so a collective must not run
// there; the error makes TensorFlow leave the node alone.
bool IsFoldingConstants(tf::OpKernelContext* ctx) {
  return ctx->step_id() == tf::LogMemory::CONSTANT_FOLDING_STEP_ID ||
         (ctx->cancellation_manager() == nullptr &&
          ctx->function_library() == nullptr);
}

// Tells the iterations of loops apart, nested ones too: TensorFlow runs
// several iterations of an outer loop at a time, and those of the inner loop
// then differ in the frame only. The frame's number is a hash of its name and
// of the outer iteration, and so the same on every rank.
uint64_t InstanceOf(const tf::FrameAndIter& at) {
  const uint64_t frame = at.frame_id ^ (at.frame_id >> 32);
  return (frame << 32) | (static_cast<uint64_t>(at.iter_id) & 0xffffffffu);
}

// An eager op is a step of its own, which no other op belongs to. TensorFlow
// wraps it into a function with a node that is called like the op; nodes of
// graphs are called otherwise, by ops.py and by the name scopes of gradients.
int64_t StepOf(const tf::OpKernel& kernel, tf::OpKernelContext* ctx) {
  return kernel.name() == kernel.type_string() ? 0 : ctx->step_id();
}

std::string RanksText(const ProcessSet& set) {
  std::string text = "[";
  for (size_t i = 0; i < set.ranks.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(set.ranks[i]);
  }
  return text + "]";
}

}  // namespace

Result<const ProcessSet*> FindMemberSet(const Runtime* runtime,
                                        int process_set_id) {
  if (runtime == nullptr) {
    return FailedPrecondition(
        "hvd_tf is not initialised; call hvd.init() first");
  }
  const ProcessSet* set = runtime->process_set(process_set_id);
  if (set == nullptr) {
    return InvalidArgument("process set " + std::to_string(process_set_id) +
                           " is unknown; pass it to hvd.init(process_sets=...)"
                           " on every rank");
  }
  if (set->rank < 0) {
    return InvalidArgument("rank " + std::to_string(runtime->topology().rank) +
                           " is not a member of process set " +
                           std::to_string(process_set_id) + " (ranks " +
                           RanksText(*set) +
                           "); only its members may call collectives on it");
  }
  return set;
}

CollectiveKernel::CollectiveKernel(tf::OpKernelConstruction* ctx)
    : tf::AsyncOpKernel(ctx) {
  OP_REQUIRES_OK(ctx, ctx->GetAttr("tensor_name", &tensor_name_));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("process_set_id", &process_set_id_));
  if (tensor_name_.empty()) tensor_name_ = name();
}

Result<int> CollectiveKernel::RootWithin(const ProcessSet& set,
                                         int process_set_id, int root_rank) {
  const auto found =
      std::lower_bound(set.ranks.begin(), set.ranks.end(), root_rank);
  if (found == set.ranks.end() || *found != root_rank) {
    return InvalidArgument("root_rank " + std::to_string(root_rank) +
                           " is not a rank of process set " +
                           std::to_string(process_set_id) + " (ranks " +
                           RanksText(set) + "); use one of these");
  }
  return static_cast<int>(found - set.ranks.begin());
}

Key CollectiveKernel::MakeKey(tf::OpKernelContext* ctx) const {
  return Key{tensor_name_, InstanceOf(ctx->frame_iter())};
}

Status CollectiveKernel::Named(const Status& status) const {
  if (status.ok()) return status;
  return Status(status.code(), "'" + tensor_name_ + "': " + status.message());
}

void CollectiveKernel::ComputeAsync(tf::OpKernelContext* ctx,
                                    DoneCallback done) {
  OP_REQUIRES_ASYNC(
      ctx, !IsFoldingConstants(ctx),
      TfStatus(absl::StatusCode::kFailedPrecondition,
               "a collective does not run while constants are folded"),
      done);
  std::shared_ptr<Runtime> runtime = GetRuntime();
  const Result<const ProcessSet*> set =
      FindMemberSet(runtime.get(), process_set_id_);
  OP_REQUIRES_OK_ASYNC(ctx, ToTf(Named(set.status())), done);

  Call call;
  Request& request = call.entry.request;
  request.signature.memory = memory_;
  request.error = Describe(ctx, *set.value(), &request.signature);
  if (set.value()->ranks.size() == 1) {
    if (request.error.ok()) {
      request.error = ComputeAlone(ctx, request.signature);
    }
    OP_REQUIRES_OK_ASYNC(ctx, ToTf(Named(request.error)), done);
    done();
    return;
  }
  if (request.error.ok()) request.error = Bind(ctx, *set.value(), &call);
  if (!request.error.ok()) {
    call.entry.inputs.clear();
    call.entry.outputs.clear();
    call.entry.allocate = nullptr;
    call.on_success = nullptr;
  }
  Submit(std::move(runtime), ctx, std::move(call), std::move(done));
}

void CollectiveKernel::Submit(std::shared_ptr<Runtime> runtime,
                              tf::OpKernelContext* ctx, Call call,
                              DoneCallback done) {
  Entry& entry = call.entry;
  entry.request.key = MakeKey(ctx);
  entry.request.step = StepOf(*this, ctx);
  entry.ticket = runtime->NewTicket();
  entry.keep_alive = std::move(call.tensors);
  auto cancellation = std::make_shared<StepCancellation>(
      runtime, process_set_id_, entry.ticket, ctx);
  if (!cancellation->Register()) {
    const Status why = cancellation->Why();
    runtime->AbortStep(process_set_id_, entry.request.key, entry.request.step,
                       why);
    cancellation->Finish();
    ctx->SetStatus(ToTf(why));
    done();
    return;
  }
  // The peers are told who failed; this rank, only what.
  entry.done = [ctx, cancellation, own_error = Named(entry.request.error),
                on_success = std::move(call.on_success),
                done = std::move(done)](const Status& status) {
    cancellation->Finish();
    Status result = own_error.ok() ? status : own_error;
    if (result.ok() && on_success) result = on_success();
    if (!result.ok()) ctx->SetStatus(ToTf(result));
    done();
  };
  runtime->Enqueue(process_set_id_, std::move(entry));
  cancellation->Enqueued();
}

}  // namespace hvd
