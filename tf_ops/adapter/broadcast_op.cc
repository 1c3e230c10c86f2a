// SPDX-License-Identifier: Apache-2.0
// HorovodBroadcast: the op and its kernel.
#include <utility>

#include "adapter/collective_kernel.h"
#include "adapter/kernel_inputs.h"
#include "adapter/op_definitions.h"
#include "adapter/tf_bridge.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

HVD_REGISTER_COLLECTIVE("HorovodBroadcast")
    .Attr("T: " HVD_ALL_TYPES)
    .Attr("root_rank: int")
    .Input("tensor: T")
    .Output("output: T")
    .SetShapeFn(SameShapes)
    .Doc(
        "Gives every rank the root's tensor."
        "\n\ntensor: The same shape and dtype on every rank."
        "\noutput: The root's values."
        "\nroot_rank: A rank of the job, within the process "
        "set." HVD_COMMON_DOC);

class BroadcastKernel : public CollectiveKernel {
 public:
  explicit BroadcastKernel(tf::OpKernelConstruction* ctx)
      : CollectiveKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("root_rank", &root_rank_));
  }

 protected:
  Status Describe(tf::OpKernelContext* ctx, const ProcessSet& set,
                  Signature* signature) override {
    signature->verb = Verb::kBroadcast;
    HVD_RETURN_IF_ERROR(DescribeInputs(ctx, 1, signature));
    const Result<int> root = RootWithin(set, root_rank_);
    if (!root.ok()) return root.status();
    signature->root = root.value();
    return Status::Ok();
  }

  Status Bind(tf::OpKernelContext* ctx, const ProcessSet& set,
              CollectiveCall* call) override {
    const tf::Tensor& input = ctx->input(0);
    call->entry.inputs.push_back(MutableData(input));
    call->tensors.push_back(input);
    if (set.rank == call->entry.request.signature.root) {
      // The root already has the value, so its output shares the memory.
      call->entry.outputs.push_back(MutableData(input));
      return PassInputsOn(ctx);
    }
    Result<tf::Tensor> output = AllocateOutput(ctx, 0, input.shape());
    if (!output.ok()) return output.status();
    call->entry.outputs.push_back(MutableData(output.value()));
    call->tensors.push_back(std::move(output.value()));
    return Status::Ok();
  }

  Status ComputeAlone(tf::OpKernelContext* ctx, const Signature&) override {
    return PassInputsOn(ctx);
  }

 private:
  int root_rank_ = 0;
};

HVD_REGISTER_KERNELS("HorovodBroadcast", BroadcastKernel);

}  // namespace
}  // namespace hvd
