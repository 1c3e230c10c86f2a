// SPDX-License-Identifier: Apache-2.0
// HorovodReducescatter and HorovodGroupedReducescatter: the ops and their
// kernel.
#include <utility>

#include "adapter/collective_kernel.h"
#include "adapter/kernel_inputs.h"
#include "adapter/op_definitions.h"
#include "adapter/tf_bridge.h"
#include "core/rows.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

HVD_REGISTER_REDUCTION("HorovodReducescatter")
    .Attr("T: " HVD_REDUCIBLE_TYPES)
    .Input("tensor: T")
    .Output("output: T")
    .SetShapeFn(UnknownFirstDimensions)
    .Doc(
        "Reduces a tensor over the ranks of a process set, and gives each rank "
        "some rows of the result."
        "\n\ntensor: The same shape and dtype on every rank."
        "\noutput: This rank's rows. Ranks get as many each, in rank order; "
        "the first ones get one more where they do not divide." HVD_REDUCE_DOC
            HVD_COMMON_DOC);

HVD_REGISTER_REDUCTION("HorovodGroupedReducescatter")
    .Attr("T: " HVD_REDUCIBLE_TYPES)
    .Attr("num_tensors: int >= 1")
    .Input("tensors: num_tensors * T")
    .Output("outputs: num_tensors * T")
    .SetShapeFn(UnknownFirstDimensions)
    .Doc(
        "Reduces and scatters several tensors, which are agreed on, travel and "
        "fail as one."
        "\n\ntensors: The same shapes and dtype on every rank."
        "\noutputs: This rank's rows of each, as HorovodReducescatter's."
        "\nnum_tensors: How many." HVD_REDUCE_DOC HVD_COMMON_DOC);

class ReducescatterKernel : public CollectiveKernel {
 public:
  explicit ReducescatterKernel(tf::OpKernelConstruction* ctx)
      : CollectiveKernel(ctx) {
    OP_REQUIRES_OK(ctx, reduction_.Read(ctx));
  }

 protected:
  Status Describe(tf::OpKernelContext* ctx, const ProcessSet& /*set*/,
                  Signature* signature) override {
    signature->verb = Verb::kReducescatter;
    HVD_RETURN_IF_ERROR(DescribeInputs(ctx, ctx->num_inputs(), signature));
    HVD_RETURN_IF_ERROR(RefuseScalars(*signature));
    return reduction_.Describe(signature);
  }

  Status Bind(tf::OpKernelContext* ctx, const ProcessSet& set,
              CollectiveCall* call) override {
    BindInputs(ctx, ctx->num_inputs(), call);
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      tf::TensorShape shape = ctx->input(i).shape();
      const RowRange own = ScatteredRows(shape.dim_size(0), set.rank,
                                         static_cast<int>(set.ranks.size()));
      shape.set_dim(0, own.size());
      Result<tf::Tensor> output = AllocateOutput(ctx, i, shape);
      if (!output.ok()) return output.status();
      call->entry.outputs.push_back(MutableData(output.value()));
      call->tensors.push_back(std::move(output.value()));
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

HVD_REGISTER_KERNELS("HorovodReducescatter", ReducescatterKernel);
HVD_REGISTER_KERNELS("HorovodGroupedReducescatter", ReducescatterKernel);

}  // namespace
}  // namespace hvd
