// SPDX-License-Identifier: Apache-2.0
// HorovodAllreduce and HorovodGroupedAllreduce: the ops and their kernel.
#include <utility>

#include "adapter/collective_kernel.h"
#include "adapter/kernel_inputs.h"
#include "adapter/op_definitions.h"
#include "adapter/tf_bridge.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

HVD_REGISTER_REDUCTION("HorovodAllreduce")
    .Attr("T: " HVD_REDUCIBLE_TYPES)
    .Input("tensor: T")
    .Output("sum: T")
    .SetShapeFn(SameShapes)
    .Doc(
        "Reduces a tensor over the ranks of a process set."
        "\n\ntensor: The same shape and dtype on every rank."
        "\nsum: The reduced tensor, the same on every rank." HVD_REDUCE_DOC
            HVD_COMMON_DOC);

HVD_REGISTER_REDUCTION("HorovodGroupedAllreduce")
    .Attr("T: " HVD_REDUCIBLE_TYPES)
    .Attr("num_tensors: int >= 1")
    .Input("tensors: num_tensors * T")
    .Output("sums: num_tensors * T")
    .SetShapeFn(SameShapes)
    .Doc(
        "Reduces several tensors, which are agreed on, travel and fail as one."
        "\n\ntensors: The same shapes and dtype on every rank."
        "\nsums: The reduced tensors, the same on every rank."
        "\nnum_tensors: How many." HVD_REDUCE_DOC HVD_COMMON_DOC);

class AllreduceKernel : public CollectiveKernel {
 public:
  explicit AllreduceKernel(tf::OpKernelConstruction* ctx)
      : CollectiveKernel(ctx) {
    OP_REQUIRES_OK(ctx, reduction_.Read(ctx));
  }

 protected:
  Status Describe(tf::OpKernelContext* ctx, const ProcessSet& /*set*/,
                  Signature* signature) override {
    signature->verb = Verb::kAllreduce;
    HVD_RETURN_IF_ERROR(DescribeInputs(ctx, ctx->num_inputs(), signature));
    return reduction_.Describe(signature);
  }

  Status Bind(tf::OpKernelContext* ctx, const ProcessSet& /*set*/,
              CollectiveCall* call) override {
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      HVD_RETURN_IF_ERROR(BindReduced(ctx, i, call));
    }
    return Status::Ok();
  }

  Status ComputeAlone(tf::OpKernelContext* ctx,
                      const Signature& asked) override {
    return ReduceAlone(ctx, asked);
  }

 private:
  ReductionAttributes reduction_;
};

HVD_REGISTER_KERNELS("HorovodAllreduce", AllreduceKernel);
HVD_REGISTER_KERNELS("HorovodGroupedAllreduce", AllreduceKernel);

}  // namespace
}  // namespace hvd
