// SPDX-License-Identifier: Apache-2.0
// The code that the kernels of all data verbs share.
#include "adapter/collective_kernel.h"

#include <optional>
#include <utility>

#include "adapter/call_site.h"
#include "adapter/global_runtime.h"
#include "adapter/gpu_kernels.h"
#include "adapter/kernel_inputs.h"
#include "adapter/matched_names.h"
#include "adapter/tf_bridge.h"
#include "core/verbs/verb_rules.h"
#include "cpu/finite.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

// Data verbs are stateless, so TensorFlow tries to fold one whose input is a
// constant. It does so while a graph is optimised (there is no step, no
// cancellation and no function library) or built (the step has a special
// number). Ranks fold at different times, and each time they retrace. So a
// collective must not run then. The error makes TensorFlow leave the node
// alone.
bool IsFoldingConstants(tf::OpKernelContext* ctx) {
  return ctx->step_id() == tf::LogMemory::CONSTANT_FOLDING_STEP_ID ||
         (ctx->cancellation_manager() == nullptr &&
          ctx->function_library() == nullptr);
}

// What a transport checks in a set of several ranks.
Status CheckFinite(tf::OpKernelContext* ctx, const Runtime& runtime,
                   const std::string& name, const Signature& asked) {
  const bool is_asked_for = runtime.options().check_numerics;
  const bool checks = RulesOf(asked.verb).finite_check != FiniteCheck::kNever;
  if (!is_asked_for || !checks) return Status::Ok();
  // Further inputs, such as splits, are no tensors of the call.
  const auto count = static_cast<int>(asked.shapes.size());
  for (int i = 0; i < count; ++i) {
    const tf::Tensor& input = ctx->input(i);
    if (!AllFiniteOnWire(asked.dtype, asked.wire_dtype, MutableData(input),
                         input.NumElements(), asked.prescale)) {
      return NotFinite(runtime.topology().rank, name, i, count);
    }
  }
  return Status::Ok();
}

}  // namespace

CollectiveKernel::CollectiveKernel(tf::OpKernelConstruction* ctx)
    : tf::AsyncOpKernel(ctx), memory_(MemoryOf(ctx->device_type())) {
  OP_REQUIRES_OK(ctx, ctx->GetAttr("tensor_name", &tensor_name_));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("process_set_id", &process_set_id_));
  if (IsEager(*this)) words_place_ = PlaceOfWords(tensor_name_);
  tensor_name_ = MatchedNames(ctx, {tensor_name_})[0];
}

void CollectiveKernel::ComputeAsync(tf::OpKernelContext* ctx,
                                    DoneCallback done) {
  OP_REQUIRES_ASYNC(
      ctx, !IsFoldingConstants(ctx),
      TfStatus(absl::StatusCode::kFailedPrecondition,
               "a collective does not run while constants are folded"),
      done);
  if (words_place_ < 0) return Run(ctx, tensor_name_, nullptr, std::move(done));
  const std::optional<EagerWords> words = GetEagerWords().Take(words_place_);
  OP_REQUIRES_ASYNC(ctx, words.has_value(),
                    TfStatus(absl::StatusCode::kInternal,
                             "an eager collective ran twice, or elsewhere than "
                             "in the process that called it"),
                    done);
  Run(ctx, words->name, &*words, std::move(done));
}

void CollectiveKernel::Run(tf::OpKernelContext* ctx, const std::string& name,
                           const EagerWords* words, DoneCallback done) {
  std::shared_ptr<Runtime> runtime = GetRuntime();
  const Result<ProcessSetPtr> set =
      FindMemberSet(runtime.get(), process_set_id_);
  OP_REQUIRES_OK_ASYNC(ctx, ToTf(Named(name, set.status())), done);

  std::shared_ptr<KernelCall> call = calls_->Take();
  call->Begin(ctx);
  Request& request = call->entry.request;
  DescribeCall(ctx, runtime, *set.value(), words, call.get());
  if (set.value()->ranks.size() == 1 &&
      PassesAlone(*runtime, request.signature)) {
    if (request.error.ok()) {
      request.error = CheckFinite(ctx, *runtime, name, request.signature);
    }
    if (request.error.ok()) {
      request.error = ComputeAlone(ctx, request.signature);
    }
    OP_REQUIRES_OK_ASYNC(ctx, ToTf(Named(name, request.error)), done);
    done();
    return;
  }
  if (request.error.ok()) request.error = Bind(ctx, *set.value(), call.get());
  if (request.error.ok()) {
    Result<std::shared_ptr<const void>> ready = ReadyOf(ctx, memory_);
    request.error = ready.status();
    if (ready.ok()) call->entry.ready = std::move(ready.value());
  }
  if (!request.error.ok()) call->DropBuffers();
  call->set_done(std::move(done));
  SubmitCall(std::move(runtime), *set.value(), CallSiteOf(ctx), name,
             std::move(call));
}

bool CollectiveKernel::PassesAlone(const Runtime& runtime,
                                   const Signature& asked) const {
  // This thread computes in host memory only.
  return memory_ == MemoryKind::kHost ||
         (!RulesOf(asked.verb).has_ids && !runtime.options().check_numerics &&
          asked.prescale == 1.0 && asked.postscale == 1.0 &&
          asked.wire_dtype == asked.dtype);
}

void CollectiveKernel::DescribeCall(tf::OpKernelContext* ctx,
                                    const std::shared_ptr<Runtime>& runtime,
                                    const ProcessSet& set,
                                    const EagerWords* words, KernelCall* call) {
  Request& request = call->entry.request;
  if (words == nullptr && FollowsInputs() &&
      call->IsDescribedFor(runtime, set.serial) &&
      HaveShapes(ctx, request.signature.shapes)) {
    return;  // it is the request of an earlier run
  }
  call->ForgetRequest();
  request.signature.memory = memory_;
  request.error = Describe(ctx, set, &request.signature);
  if (request.error.ok() && words != nullptr) {
    request.error = SetScales(*words, &request.signature);
  }
  if (request.error.ok()) call->SetDescribedFor(runtime, set.serial);
}

}  // namespace hvd
