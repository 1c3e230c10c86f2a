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

namespace hvd {

namespace tf = ::tensorflow;

CollectiveKernel::CollectiveKernel(tf::OpKernelConstruction* ctx)
    : tf::AsyncOpKernel(ctx), memory_(MemoryOf(ctx->device_type())) {
  OP_REQUIRES_OK(ctx, ctx->GetAttr("tensor_name", &tensor_name_));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("process_set_id", &process_set_id_));
  if (IsEager(*this)) words_place_ = PlaceOfWords(tensor_name_);
  tensor_name_ = MatchedNames(ctx, {tensor_name_})[0];
}

void CollectiveKernel::ComputeAsync(tf::OpKernelContext* ctx,
                                    DoneCallback done) {
  // Not OP_REQUIRES_OK_ASYNC: that would warn.
  const TfStatus may_run = RefuseFolding(ctx);
  OP_REQUIRES_ASYNC(ctx, may_run.ok(), may_run, done);
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
      PassesAlone(memory_, *runtime, request.signature)) {
    if (request.error.ok()) {
      request.error = CheckFinite(ctx, *runtime, name, request.signature, 0);
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

void CollectiveKernel::DescribeCall(tf::OpKernelContext* ctx,
                                    const std::shared_ptr<Runtime>& runtime,
                                    const ProcessSet& set,
                                    const EagerWords* words, KernelCall* call) {
  Request& request = call->entry.request;
  if (words == nullptr && FollowsInputs() &&
      call->IsDescribedFor(runtime, set.serial) &&
      HaveShapes(ctx, request.signature.shapes, 0)) {
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
