// SPDX-License-Identifier: Apache-2.0
// HorovodBarrier: the op and its kernel.
#include "adapter/collective_kernel.h"
#include "adapter/op_definitions.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

HVD_REGISTER_COLLECTIVE("HorovodBarrier")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(
        "Waits until every rank of a process set has come to it."
        "\n" HVD_COMMON_DOC);

class BarrierKernel : public CollectiveKernel {
 public:
  explicit BarrierKernel(tf::OpKernelConstruction* ctx)
      : CollectiveKernel(ctx) {}

 protected:
  Status Describe(tf::OpKernelContext* /*ctx*/, const ProcessSet& /*set*/,
                  Signature* signature) override {
    signature->verb = Verb::kBarrier;
    return Status::Ok();
  }
  Status Bind(tf::OpKernelContext* /*ctx*/, const ProcessSet& /*set*/,
              CollectiveCall* /*call*/) override {
    return Status::Ok();
  }
  Status ComputeAlone(tf::OpKernelContext* /*ctx*/, const Signature&) override {
    return Status::Ok();
  }
};

HVD_REGISTER_CPU_KERNEL("HorovodBarrier", BarrierKernel);

}  // namespace
}  // namespace hvd
