// SPDX-License-Identifier: Apache-2.0
// HorovodBundledSparseAllreduce: the op that a graph pass makes of several
// HorovodSparseAllreduce, and its kernel.
#include "adapter/bundled_kernel.h"
#include "adapter/op_definitions.h"
#include "adapter/sparse_call.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

HVD_REGISTER_BUNDLE("HorovodBundledSparseAllreduce")
    .Attr("Tindices: {int32, int64}")
    .Input("values: num_tensors * T")
    .Input("indices: num_tensors * Tindices")
    .Input("dense_shapes: num_tensors * int64")
    .Output("sums: num_tensors * T")
    .Output("united_indices: num_tensors * Tindices")
    .SetShapeFn(SparseShapes)
    .Doc(
        "Several HorovodSparseAllreduce of a table each in one kernel. Each is "
        "a call of its own for the other ranks. See HVD_BUNDLE_BYTES."
        "\n\nvalues: What HorovodSparseAllreduce has."
        "\nindices: What HorovodSparseAllreduce has."
        "\ndense_shapes: What HorovodSparseAllreduce has."
        "\nsums: What HorovodSparseAllreduce has."
        "\nunited_indices: What HorovodSparseAllreduce has." HVD_BUNDLE_DOC);

class BundledSparseAllreduceKernel : public BundledKernel {
 public:
  explicit BundledSparseAllreduceKernel(tf::OpKernelConstruction* ctx)
      : BundledKernel(ctx, 3) {}

 protected:
  // How many rows a rank has depends on the indices' values.
  bool FollowsInputs() const override { return false; }

  Status Describe(tf::OpKernelContext* ctx, int place,
                  Signature* signature) const override {
    return DescribeSparse(TablesOf(ctx, place), reduction(), signature);
  }

  Status Bind(tf::OpKernelContext* ctx, int place,
              CollectiveCall* call) const override {
    return BindSparse(TablesOf(ctx, place), call);
  }

  Status ComputeAlone(tf::OpKernelContext* ctx, int place,
                      const Signature& asked) const override {
    return ReduceSparseAlone(TablesOf(ctx, place), asked);
  }

 private:
  SparseTables TablesOf(tf::OpKernelContext* ctx, int place) const {
    return {ctx, call_count(), place, 1};
  }
};

HVD_REGISTER_KERNELS("HorovodBundledSparseAllreduce",
                     BundledSparseAllreduceKernel, "indices", "dense_shapes",
                     "united_indices");

}  // namespace
}  // namespace hvd
