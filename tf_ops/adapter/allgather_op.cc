// SPDX-License-Identifier: Apache-2.0
// HorovodAllgather and HorovodGroupedAllgather: the ops and their kernel.
#include <utility>

#include "adapter/collective_kernel.h"
#include "adapter/kernel_inputs.h"
#include "adapter/op_definitions.h"
#include "adapter/tf_bridge.h"
#include "core/rows.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

HVD_REGISTER_COLLECTIVE("HorovodAllgather")
    .Attr("T: " HVD_ALL_TYPES)
    .Input("tensor: T")
    .Output("output: T")
    .SetShapeFn(UnknownFirstDimensions)
    .Doc(
        "Concatenates the ranks' tensors along the first dimension, in rank "
        "order."
        "\n\ntensor: The same on every rank but for values and first "
        "dimension."
        "\noutput: The concatenation, the same on every rank." HVD_COMMON_DOC);

HVD_REGISTER_COLLECTIVE("HorovodGroupedAllgather")
    .Attr("T: " HVD_ALL_TYPES)
    .Attr("num_tensors: int >= 1")
    .Input("tensors: num_tensors * T")
    .Output("outputs: num_tensors * T")
    .SetShapeFn(UnknownFirstDimensions)
    .Doc(
        "Gathers several tensors, which are agreed on, travel and fail as one."
        "\n\ntensors: As HorovodAllgather's."
        "\noutputs: One concatenation per tensor."
        "\nnum_tensors: How many." HVD_COMMON_DOC);

class AllgatherKernel : public CollectiveKernel {
 public:
  explicit AllgatherKernel(tf::OpKernelConstruction* ctx)
      : CollectiveKernel(ctx) {}

 protected:
  Status Describe(tf::OpKernelContext* ctx, const ProcessSet& /*set*/,
                  Signature* signature) override {
    signature->verb = Verb::kAllgather;
    HVD_RETURN_IF_ERROR(DescribeInputs(ctx, ctx->num_inputs(), signature));
    return RefuseScalars(*signature);
  }

  Status Bind(tf::OpKernelContext* ctx, const ProcessSet& /*set*/,
              CollectiveCall* call) override {
    BindInputs(ctx, ctx->num_inputs(), call);
    call->entry.allocate = [ctx, call](const std::vector<Shape>& shapes,
                                       RankCountsSpan /*rows*/,
                                       std::vector<void*>* outputs) -> Status {
      outputs->clear();
      for (size_t i = 0; i < shapes.size(); ++i) {
        const Result<tf::TensorShape> shape = ToTf(shapes[i]);
        if (!shape.ok()) return shape.status();
        Result<tf::Tensor> output =
            AllocateLateOutput(ctx, static_cast<int>(i), shape.value());
        if (!output.ok()) return output.status();
        outputs->push_back(MutableData(output.value()));
        call->tensors.push_back(std::move(output.value()));
      }
      return Status::Ok();
    };
    return Status::Ok();
  }

  Status ComputeAlone(tf::OpKernelContext* ctx, const Signature&) override {
    return PassInputsOn(ctx);
  }
};

HVD_REGISTER_KERNELS("HorovodAllgather", AllgatherKernel);
HVD_REGISTER_KERNELS("HorovodGroupedAllgather", AllgatherKernel);

}  // namespace
}  // namespace hvd
