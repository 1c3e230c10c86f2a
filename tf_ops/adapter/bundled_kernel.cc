// SPDX-License-Identifier: Apache-2.0
// Makes, binds and submits the calls of a bundle.
#include "adapter/bundled_kernel.h"

#include <algorithm>
#include <utility>

#include "adapter/call_site.h"
#include "adapter/global_runtime.h"
#include "adapter/gpu_kernels.h"
#include "adapter/matched_names.h"
#include "adapter/tf_bridge.h"
#include "core/verbs/verb_rules.h"

namespace hvd {

namespace tf = ::tensorflow;

BundledKernel::BundledKernel(tf::OpKernelConstruction* ctx,
                             int inputs_of_a_call)
    : tf::AsyncOpKernel(ctx), memory_(MemoryOf(ctx->device_type())) {
  OP_REQUIRES_OK(ctx, ctx->GetAttr("tensor_names", &names_));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("nodes", &nodes_));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("process_set_id", &process_set_id_));
  OP_REQUIRES(ctx,
              names_.size() == nodes_.size() &&
                  call_count() * inputs_of_a_call == num_inputs(),
              TfStatus(absl::StatusCode::kInvalidArgument,
                       "a bundle needs a name and a node for each tensor"));
  OP_REQUIRES_OK(ctx, reduction_.Read(ctx));
  names_ = MatchedNames(ctx, std::move(names_));
}

void BundledKernel::ComputeAsync(tf::OpKernelContext* ctx, DoneCallback done) {
  // Not OP_REQUIRES_OK_ASYNC: that would warn.
  const TfStatus may_run = RefuseFolding(ctx);
  OP_REQUIRES_ASYNC(ctx, may_run.ok(), may_run, done);
  const std::shared_ptr<Runtime> runtime = GetRuntime();
  const Result<ProcessSetPtr> found =
      FindMemberSet(runtime.get(), process_set_id_);
  OP_REQUIRES_OK_ASYNC(ctx, ToTf(Named(names_[0], found.status())), done);
  const ProcessSet& set = *found.value();
  const std::shared_ptr<Bundle> bundle = bundles_->Take();
  bundle->Begin(ctx, nodes_, runtime, set.serial);
  for (int i = 0; i < call_count(); ++i) DescribeCall(ctx, i, bundle.get());
  if (set.ranks.size() == 1 && AllPassAlone(*runtime, *bundle)) {
    OP_REQUIRES_OK_ASYNC(
        ctx, ToTf(ComputeAllAlone(ctx, *runtime, bundle.get())), done);
    return done();
  }
  BindAll(ctx, bundle.get());
  bundle->set_done(std::move(done));
  std::vector<std::shared_ptr<CollectiveCall>> calls;
  calls.reserve(names_.size());
  for (Bundle::Call& call : bundle->calls()) calls.emplace_back(bundle, &call);
  SubmitCalls(runtime, set, CallSiteOf(ctx), names_, calls);
}

void BundledKernel::DescribeCall(tf::OpKernelContext* ctx, int place,
                                 Bundle* bundle) const {
  Bundle::Call& call = CallOf(bundle, place);
  Request& request = call.entry.request;
  if (FollowsInputs() && call.is_described &&
      HaveShapes(ctx, request.signature.shapes, place)) {
    return;  // it is the request of an earlier run
  }
  const uint64_t number = call.entry.signature_number;
  const Signature earlier = std::move(request.signature);
  call.ForgetRequest();
  request.signature.memory = memory_;
  request.error = Describe(ctx, place, &request.signature);
  call.is_described = request.error.ok();
  // The set knows it by the same number where only the rows are more or fewer.
  if (number != 0 && SameButFirstDims(earlier, request.signature)) {
    call.entry.signature_number = number;
  }
}

bool BundledKernel::AllPassAlone(const Runtime& runtime, Bundle& bundle) const {
  return std::all_of(bundle.calls().begin(), bundle.calls().end(),
                     [&](const Bundle::Call& call) {
                       return PassesAlone(memory_, runtime,
                                          call.entry.request.signature);
                     });
}

Status BundledKernel::ComputeAllAlone(tf::OpKernelContext* ctx,
                                      const Runtime& runtime,
                                      Bundle* bundle) const {
  for (int i = 0; i < call_count(); ++i) {
    const Request& request = CallOf(bundle, i).entry.request;
    const std::string& name = names_[static_cast<size_t>(i)];
    Status status = request.error;
    if (status.ok()) {
      status = CheckFinite(ctx, runtime, name, request.signature, i);
    }
    if (status.ok()) status = ComputeAlone(ctx, i, request.signature);
    HVD_RETURN_IF_ERROR(Named(name, status));
  }
  return Status::Ok();
}

void BundledKernel::BindEach(tf::OpKernelContext* /*ctx*/,
                             const std::function<void(int)>& bind) const {
  for (int i = 0; i < call_count(); ++i) bind(i);
}

void BundledKernel::BindAll(tf::OpKernelContext* ctx, Bundle* bundle) const {
  BindEach(ctx, [&](int place) {
    Bundle::Call& call = CallOf(bundle, place);
    Status& error = call.entry.request.error;
    if (error.ok()) error = Bind(ctx, place, &call);
  });
  // Memory of outputs counts, so it comes last.
  const Result<std::shared_ptr<const void>> ready = ReadyOf(ctx, memory_);
  for (Bundle::Call& call : bundle->calls()) {
    Status& error = call.entry.request.error;
    if (error.ok()) error = ready.status();
    if (!error.ok()) {
      call.DropBuffers();
      call.is_described = false;
    } else {
      call.entry.ready = ready.value();
    }
  }
}

}  // namespace hvd
