// SPDX-License-Identifier: Apache-2.0
// HorovodSparseAllreduce: the op and its kernel.
//
// A rank's rows of equal id are added up before the call is handed to the
// runtime: see sparse_rows.h.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "adapter/collective_kernel.h"
#include "adapter/global_runtime.h"
#include "adapter/kernel_inputs.h"
#include "adapter/op_definitions.h"
#include "adapter/sparse_rows.h"
#include "adapter/tf_bridge.h"
#include "core/rows.h"
#include "cpu/elementwise.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

// Values, then indices, then dense shapes.
TfStatus SparseShapes(InferenceContext* c) {
  const int tensors = c->num_outputs() / 2;
  for (int i = 0; i < tensors; ++i) {
    ShapeHandle rows = c->UnknownShape();
    if (c->RankKnown(c->input(i)) && c->Rank(c->input(i)) > 0) {
      TF_RETURN_IF_ERROR(c->ReplaceDim(c->input(i), 0, c->UnknownDim(), &rows));
    }
    c->set_output(i, rows);
    c->set_output(tensors + i, c->Vector(c->UnknownDim()));
  }
  return absl::OkStatus();
}

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
    signature->verb = Verb::kSparseAllreduce;
    // There is one for each shape, also where the inputs are invalid.
    signature->table_rows.assign(static_cast<size_t>(tensors_), -1);
    HVD_RETURN_IF_ERROR(DescribeInputs(ctx, tensors_, signature));
    for (int i = 0; i < tensors_; ++i) {
      signature->table_rows[i] = TableRows(ctx, i);
    }
    signature->id_dtype = ctx->input_dtype(tensors_) == tf::DT_INT32
                              ? DataType::kInt32
                              : DataType::kInt64;
    const std::shared_ptr<Runtime> runtime = GetRuntime();
    // The option says what goes between hosts. On GPUs nothing of it is used.
    if (runtime != nullptr && memory() == MemoryKind::kHost) {
      signature->sparse_algo = runtime->options().sparse_algo;
    }
    HVD_RETURN_IF_ERROR(RefuseScalars(*signature));
    HVD_RETURN_IF_ERROR(reduction_.Describe(signature));
    if (signature->reduce_op != ReduceOp::kSum &&
        signature->reduce_op != ReduceOp::kAverage) {
      return InvalidArgument("sparse_allreduce adds up rows, so it cannot do " +
                             std::string(Name(signature->reduce_op)) +
                             "; use Average or Sum");
    }
    for (int i = 0; i < tensors_; ++i) {
      HVD_RETURN_IF_ERROR(CheckIndices(ctx->input(i), ctx->input(tensors_ + i),
                                       signature->id_dtype,
                                       signature->table_rows[i]));
    }
    return Status::Ok();
  }

  Status Bind(tf::OpKernelContext* ctx, const ProcessSet& /*set*/,
              CollectiveCall* call) override {
    Signature* const signature = &call->entry.request.signature;
    for (int i = 0; i < tensors_; ++i) {
      Result<SparseRows> rows =
          memory() == MemoryKind::kHost
              ? UniqueRows(ctx, GivenRows(ctx, i), *signature,
                           signature->table_rows[i])
              : ListedRows(ctx, GivenRows(ctx, i), *signature);
      if (!rows.ok()) return rows.status();
      signature->shapes[i][0] = rows.value().ids.dim_size(0);
      call->entry.inputs.push_back(MutableData(rows.value().values));
      call->entry.inputs.push_back(MutableData(rows.value().ids));
      call->entry.groups.push_back(std::move(rows.value().groups));
      call->tensors.push_back(std::move(rows.value().values));
      call->tensors.push_back(std::move(rows.value().ids));
    }
    call->entry.allocate = [this, ctx, call](const std::vector<Shape>& shapes,
                                             RankCountsSpan /*rows*/,
                                             std::vector<void*>* outputs) {
      return Allocate(ctx, shapes, call, outputs);
    };
    return Status::Ok();
  }

  Status ComputeAlone(tf::OpKernelContext* ctx,
                      const Signature& asked) override {
    for (int i = 0; i < tensors_; ++i) {
      const Result<SparseRows> rows =
          UniqueRows(ctx, GivenRows(ctx, i), asked, asked.table_rows[i]);
      if (!rows.ok()) return rows.status();
      const tf::Tensor& values = rows.value().values;
      const Result<tf::Tensor> output = AllocateOutput(ctx, i, values.shape());
      if (!output.ok()) return output.status();
      AllreduceAlone(asked.dtype, asked.wire_dtype, asked.reduce_op,
                     MutableData(values), MutableData(output.value()),
                     values.NumElements(), asked.prescale, asked.postscale);
      ctx->set_output(tensors_ + i, rows.value().ids);
    }
    return Status::Ok();
  }

 private:
  SparseRows GivenRows(tf::OpKernelContext* ctx, int i) const {
    return {ctx->input(i), ctx->input(tensors_ + i), nullptr};
  }

  // -1: not known.
  int64_t TableRows(tf::OpKernelContext* ctx, int i) const {
    const tf::Tensor& shape = ctx->input(2 * tensors_ + i);
    return shape.NumElements() == 0 ? -1 : shape.flat<int64_t>()(0);
  }

  Status Allocate(tf::OpKernelContext* ctx, const std::vector<Shape>& shapes,
                  CollectiveCall* call, std::vector<void*>* outputs) const {
    outputs->clear();
    for (int i = 0; i < tensors_; ++i) {
      const Result<tf::TensorShape> shape = ToTf(shapes[i]);
      if (!shape.ok()) return shape.status();
      for (auto [index, its_shape] :
           {std::make_pair(i, shape.value()),
            std::make_pair(tensors_ + i, tf::TensorShape({shapes[i][0]}))}) {
        Result<tf::Tensor> output = AllocateLateOutput(ctx, index, its_shape);
        if (!output.ok()) return output.status();
        outputs->push_back(MutableData(output.value()));
        call->tensors.push_back(std::move(output.value()));
      }
    }
    return Status::Ok();
  }

  int tensors_ = 0;
  ReductionAttributes reduction_;
};

HVD_REGISTER_KERNELS("HorovodSparseAllreduce", SparseAllreduceKernel, "indices",
                     "dense_shapes", "united_indices");

}  // namespace
}  // namespace hvd
