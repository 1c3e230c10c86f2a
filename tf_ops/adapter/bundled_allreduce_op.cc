// SPDX-License-Identifier: Apache-2.0
// HorovodBundledAllreduce: the op that a graph pass makes of several
// HorovodAllreduce, and its kernel.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "adapter/bundle.h"
#include "adapter/call_site.h"
#include "adapter/global_runtime.h"
#include "adapter/gpu_kernels.h"
#include "adapter/kept_calls.h"
#include "adapter/kernel_inputs.h"
#include "adapter/matched_names.h"
#include "adapter/op_definitions.h"
#include "adapter/tf_bridge.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

HVD_REGISTER_REDUCTION("HorovodBundledAllreduce")
    .Attr("T: " HVD_REDUCIBLE_TYPES)
    .Attr("num_tensors: int >= 2")
    .Attr("tensor_names: list(string)")
    .Attr("nodes: list(string)")
    .Input("tensors: num_tensors * T")
    .Output("sums: num_tensors * T")
    .SetShapeFn(SameShapes)
    .Doc(
        "Several HorovodAllreduce in one kernel. Each is a call of its own for "
        "the other ranks. See HVD_BUNDLE_BYTES."
        "\n\ntensors: What HorovodAllreduce has."
        "\nsums: What HorovodAllreduce has."
        "\nnum_tensors: How many."
        "\ntensor_names: The names that ranks match each call by."
        "\nnodes: The nodes that there were." HVD_REDUCE_DOC HVD_COMMON_DOC);

// TensorFlow owns it. It may run several times at once.
class BundledAllreduceKernel : public tf::AsyncOpKernel {
 public:
  explicit BundledAllreduceKernel(tf::OpKernelConstruction* ctx)
      : tf::AsyncOpKernel(ctx), memory_(MemoryOf(ctx->device_type())) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("tensor_names", &names_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("nodes", &nodes_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("process_set_id", &process_set_id_));
    OP_REQUIRES(ctx,
                names_.size() == nodes_.size() &&
                    names_.size() == static_cast<size_t>(num_inputs()),
                TfStatus(absl::StatusCode::kInvalidArgument,
                         "a bundle needs a name and a node for each tensor"));
    OP_REQUIRES_OK(ctx, reduction_.Read(ctx));
    names_ = MatchedNames(ctx, std::move(names_));
  }

  void ComputeAsync(tf::OpKernelContext* ctx, DoneCallback done) override {
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
    for (int i = 0; i < ctx->num_inputs(); ++i) Describe(ctx, i, bundle.get());
    if (set.ranks.size() == 1 && AllPassAlone(*runtime, *bundle)) {
      OP_REQUIRES_OK_ASYNC(ctx, ToTf(ComputeAlone(ctx, *runtime, *bundle)),
                           done);
      return done();
    }
    BindAll(ctx, bundle.get());
    bundle->set_done(std::move(done));
    std::vector<std::shared_ptr<CollectiveCall>> calls;
    calls.reserve(names_.size());
    for (Bundle::Call& call : bundle->calls())
      calls.emplace_back(bundle, &call);
    SubmitCalls(runtime, set, CallSiteOf(ctx), names_, calls);
  }

 private:
  static Bundle::Call& CallOf(Bundle* bundle, int input) {
    return bundle->calls()[static_cast<size_t>(input)];
  }

  void Describe(tf::OpKernelContext* ctx, int input, Bundle* bundle) const {
    Bundle::Call& call = CallOf(bundle, input);
    Request& request = call.entry.request;
    if (call.is_described && HaveShapes(ctx, request.signature.shapes, input)) {
      return;  // it is the request of an earlier run
    }
    call.ForgetRequest();
    request.signature.memory = memory_;
    request.signature.verb = Verb::kAllreduce;
    request.error = DescribeInputs(ctx, 1, &request.signature, input);
    if (request.error.ok()) {
      request.error = reduction_.Describe(&request.signature);
    }
    call.is_described = request.error.ok();
  }

  bool AllPassAlone(const Runtime& runtime, Bundle& bundle) const {
    return std::all_of(bundle.calls().begin(), bundle.calls().end(),
                       [&](const Bundle::Call& call) {
                         return PassesAlone(memory_, runtime,
                                            call.entry.request.signature);
                       });
  }

  Status ComputeAlone(tf::OpKernelContext* ctx, const Runtime& runtime,
                      Bundle& bundle) const {
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      const Request& request = CallOf(&bundle, i).entry.request;
      const std::string& name = names_[static_cast<size_t>(i)];
      Status status = request.error;
      if (status.ok()) {
        status = CheckFinite(ctx, runtime, name, request.signature, i);
      }
      if (status.ok()) status = ReduceAlone(ctx, request.signature, i);
      HVD_RETURN_IF_ERROR(Named(name, status));
    }
    return Status::Ok();
  }

  // Sets the buffers of described calls.
  void BindAll(tf::OpKernelContext* ctx, Bundle* bundle) const {
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      Bundle::Call& call = CallOf(bundle, i);
      Status& error = call.entry.request.error;
      if (error.ok()) error = BindReduced(ctx, i, &call);
    }
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

  const MemoryKind memory_;
  std::vector<std::string> names_;
  std::vector<std::string> nodes_;
  int process_set_id_ = 0;
  ReductionAttributes reduction_;
  const std::shared_ptr<KeptCalls<Bundle>> bundles_ =
      std::make_shared<KeptCalls<Bundle>>();
};

HVD_REGISTER_KERNELS("HorovodBundledAllreduce", BundledAllreduceKernel);

}  // namespace
}  // namespace hvd
