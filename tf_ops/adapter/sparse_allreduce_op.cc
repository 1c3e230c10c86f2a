// SPDX-License-Identifier: Apache-2.0
// HorovodSparseAllreduce: the op and its kernel.
//
// A rank's rows of equal id are added up before the call is handed to the
// runtime: see sparse_rows.h.
#include "adapter/collective_kernel.h"
#include "adapter/kernel_inputs.h"
#include "adapter/op_definitions.h"
#include "adapter/sparse_call.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

HVD_REGISTER_REDUCTION("HorovodSparseAllreduce")
    .Attr("T: " HVD_REDUCIBLE_TYPES)
    .Attr("Tindices: {int32, int64}")
    .Attr("num_tensors: int >= 1")
    .Input("values: num_tensors * T")
    .Input("indices: num_tensors * Tindices")
    .Input("dense_shapes: num_tensors * int64")
    .Output("sums: num_tensors * T")
    .Output("united_indices: num_tensors * Tindices")
    .SetShapeFn(SparseShapes)
    .Doc(
        "Reduces rows of tables over the ranks of a process set."
        "\n\nvalues: The rows, as many as a rank likes. The same on every rank "
        "but for values and first dimension."
        "\nindices: The row of the table that each is of. One may be there "
        "several times."
        "\ndense_shapes: The tables' shapes; empty where they are not known."
        "\nsums: One row for each index of any rank, the same on every rank."
        "\nunited_indices: These indices, ascending."
        "\nnum_tensors: How many tables." HVD_REDUCE_DOC HVD_COMMON_DOC);

class SparseAllreduceKernel : public CollectiveKernel {
 public:
  explicit SparseAllreduceKernel(tf::OpKernelConstruction* ctx)
      : CollectiveKernel(ctx) {
    OP_REQUIRES_OK(ctx, reduction_.Read(ctx));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_tensors", &tensors_));
  }

 protected:
  // How many rows a rank has depends on the indices' values.
  bool FollowsInputs() const override { return false; }

  Status Describe(tf::OpKernelContext* ctx, const ProcessSet& /*set*/,
                  Signature* signature) override {
    return DescribeSparse(TablesOf(ctx), reduction_, signature);
  }

  Status Bind(tf::OpKernelContext* ctx, const ProcessSet& /*set*/,
              CollectiveCall* call) override {
    return BindSparse(TablesOf(ctx), call);
  }

  Status ComputeAlone(tf::OpKernelContext* ctx,
                      const Signature& asked) override {
    return ReduceSparseAlone(TablesOf(ctx), asked);
  }

 private:
  SparseTables TablesOf(tf::OpKernelContext* ctx) const {
    return {ctx, tensors_, 0, tensors_};
  }

  int tensors_ = 0;
  ReductionAttributes reduction_;
};

HVD_REGISTER_KERNELS("HorovodSparseAllreduce", SparseAllreduceKernel, "indices",
                     "dense_shapes", "united_indices");

}  // namespace
}  // namespace hvd
