// SPDX-License-Identifier: Apache-2.0
// HorovodBundledSparseAllreduce: the op that a graph pass makes of several
// HorovodSparseAllreduce, and its kernel.
#include <functional>

#include "adapter/bundled_kernel.h"
#include "adapter/op_definitions.h"
#include "adapter/sparse_call.h"
#include "tensorflow/core/util/work_sharder.h"

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

  // Rows of equal id are added up, which takes long where there are many. As
  // kernels of their own the calls would do it at the same time.
  void BindEach(tf::OpKernelContext* ctx,
                const std::function<void(int)>& bind) const override {
    const auto* const workers = ctx->device()->tensorflow_cpu_worker_threads();
    if (workers == nullptr) return BundledKernel::BindEach(ctx, bind);
    tf::Shard(workers->num_threads, workers->workers, call_count(),
              CyclesOfBind(ctx), [&bind](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  bind(static_cast<int>(i));
                }
              });
  }

  Status ComputeAlone(tf::OpKernelContext* ctx, int place,
                      const Signature& asked) const override {
    return ReduceSparseAlone(TablesOf(ctx, place), asked);
  }

 private:
  SparseTables TablesOf(tf::OpKernelContext* ctx, int place) const {
    return {ctx, call_count(), place, 1};
  }

  // About as many as a call takes, so that short ones stay in this thread.
  int64_t CyclesOfBind(tf::OpKernelContext* ctx) const {
    constexpr int64_t kOfAnId = 12, kOfAnElement = 1;
    int64_t cycles = 0;
    for (int i = 0; i < call_count(); ++i) {
      const SparseTables tables = TablesOf(ctx, i);
      cycles += kOfAnId * tables.indices(0).NumElements() +
                kOfAnElement * tables.values(0).NumElements();
    }
    return cycles / call_count();
  }
};

HVD_REGISTER_KERNELS("HorovodBundledSparseAllreduce",
                     BundledSparseAllreduceKernel, "indices", "dense_shapes",
                     "united_indices");

}  // namespace
}  // namespace hvd
