// SPDX-License-Identifier: Apache-2.0
// HorovodBundledAllreduce: the op that a graph pass makes of several
// HorovodAllreduce, and its kernel.
#include "adapter/bundled_kernel.h"
#include "adapter/kernel_inputs.h"
#include "adapter/op_definitions.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

HVD_REGISTER_BUNDLE("HorovodBundledAllreduce")
    .Input("tensors: num_tensors * T")
    .Output("sums: num_tensors * T")
    .SetShapeFn(SameShapes)
    .Doc(
        "Several HorovodAllreduce in one kernel. Each is a call of its own for "
        "the other ranks. See HVD_BUNDLE_BYTES."
        "\n\ntensors: What HorovodAllreduce has."
        "\nsums: What HorovodAllreduce has." HVD_BUNDLE_DOC);

class BundledAllreduceKernel : public BundledKernel {
 public:
  explicit BundledAllreduceKernel(tf::OpKernelConstruction* ctx)
      : BundledKernel(ctx, 1) {}

 protected:
  Status Describe(tf::OpKernelContext* ctx, int place,
                  Signature* signature) const override {
    signature->verb = Verb::kAllreduce;
    HVD_RETURN_IF_ERROR(DescribeInputs(ctx, 1, signature, place));
    return reduction().Describe(signature);
  }

  Status Bind(tf::OpKernelContext* ctx, int place,
              CollectiveCall* call) const override {
    return BindReduced(ctx, place, call);
  }

  Status ComputeAlone(tf::OpKernelContext* ctx, int place,
                      const Signature& asked) const override {
    return ReduceAlone(ctx, asked, place);
  }
};

HVD_REGISTER_KERNELS("HorovodBundledAllreduce", BundledAllreduceKernel);

}  // namespace
}  // namespace hvd
