// SPDX-License-Identifier: Apache-2.0
// HorovodSparseAllreduce: the op and its kernel.
//
// A rank's rows of equal id are added up in TensorFlow's thread, before the
// call is handed to the runtime. So the ranks' threads do that at once, and the
// background thread has less to move. Rows on a GPU are left to its lane, which
// is told what to add up. Ids are in host memory always.
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "adapter/collective_kernel.h"
#include "adapter/global_runtime.h"
#include "adapter/kernel_inputs.h"
#include "adapter/op_definitions.h"
#include "adapter/tf_bridge.h"
#include "core/rows.h"
#include "cpu/elementwise.h"
#include "cpu/row_groups.h"

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

// Whether the indices of a tensor can be those of its rows.
Status CheckIndices(const tf::Tensor& values, const tf::Tensor& indices,
                    DataType id_dtype, int64_t table_rows) {
  const int64_t rows = values.dim_size(0);
  if (indices.dims() != 1 || indices.dim_size(0) != rows) {
    return InvalidArgument("sparse_allreduce got indices of the shape " +
                           ToString(ToCore(indices.shape())) + " for " +
                           std::to_string(rows) +
                           " rows of values; pass one index for each row");
  }
  if (rows > kMostGroupedRows) {
    return InvalidArgument("sparse_allreduce takes " +
                           std::to_string(kMostGroupedRows) +
                           " rows of values at most, not " +
                           std::to_string(rows) + "; pass fewer at a time");
  }
  const int64_t at =
      FindIdOutside(id_dtype, MutableData(indices), rows, table_rows);
  if (at < 0) return Status::Ok();
  const int64_t id = id_dtype == DataType::kInt32 ? indices.flat<int32_t>()(at)
                                                  : indices.flat<int64_t>()(at);
  return InvalidArgument("indices[" + std::to_string(at) + "] is " +
                         std::to_string(id) + ", but " +
                         (table_rows < 0
                              ? std::string("no index may be negative")
                              : "the table has the rows 0 to " +
                                    std::to_string(table_rows - 1) +
                                    ", by its dense_shape") +
                         "; check the ids that are looked up");
}

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
      Result<Rows> rows = memory() == MemoryKind::kHost
                              ? UniqueRows(ctx, i, *signature)
                              : ListedRows(ctx, i, *signature);
      if (!rows.ok()) return rows.status();
      signature->shapes[i][0] = rows.value().ids.dim_size(0);
      call->entry.inputs.push_back(MutableData(rows.value().values));
      call->entry.inputs.push_back(MutableData(rows.value().ids));
      call->entry.groups.push_back(std::move(rows.value().groups));
      call->tensors.push_back(std::move(rows.value().values));
      call->tensors.push_back(std::move(rows.value().ids));
    }
    call->entry.allocate = [this, ctx, call](const std::vector<Shape>& shapes,
                                             const RankCounts& /*rows*/,
                                             std::vector<void*>* outputs) {
      return Allocate(ctx, shapes, call, outputs);
    };
    return Status::Ok();
  }

  Status ComputeAlone(tf::OpKernelContext* ctx,
                      const Signature& asked) override {
    for (int i = 0; i < tensors_; ++i) {
      const Result<Rows> rows = UniqueRows(ctx, i, asked);
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
  // Rows of a table, each once, by ascending id.
  struct Rows {
    tf::Tensor values;
    tf::Tensor ids;
    // See Segment::groups. Null: `values` has these rows.
    std::shared_ptr<const RowGroups> groups;
  };

  // -1: not known.
  int64_t TableRows(tf::OpKernelContext* ctx, int i) const {
    const tf::Tensor& shape = ctx->input(2 * tensors_ + i);
    return shape.NumElements() == 0 ? -1 : shape.flat<int64_t>()(0);
  }

  Result<Rows> UniqueRows(tf::OpKernelContext* ctx, int i,
                          const Signature& asked) const {
    const tf::Tensor& values = ctx->input(i);
    const tf::Tensor& indices = ctx->input(tensors_ + i);
    const RowGroups groups =
        GroupRows(asked.id_dtype, MutableData(indices), indices.NumElements());
    const bool is_dense =
        asked.sparse_algo == SparseAlgo::kDense && asked.table_rows[i] >= 0;
    if (groups.is_list() && !is_dense) return Rows{values, indices, nullptr};
    Result<Rows> rows =
        NewRows(ctx, values, indices, static_cast<int64_t>(groups.ids.size()));
    if (!rows.ok()) return rows;
    SumGroups(asked.dtype, groups, MutableData(values), RowCount(values),
              MutableData(rows.value().values));
    WriteIds(asked.id_dtype, groups.ids, MutableData(rows.value().ids));
    return is_dense ? AllRows(ctx, rows.value(), groups.ids, asked,
                              asked.table_rows[i])
                    : rows;
  }

  // The same, of rows that nobody adds up here.
  Result<Rows> ListedRows(tf::OpKernelContext* ctx, int i,
                          const Signature& asked) const {
    const tf::Tensor& indices = ctx->input(tensors_ + i);
    const auto groups = std::make_shared<RowGroups>(
        GroupRows(asked.id_dtype, MutableData(indices), indices.NumElements()));
    if (groups->is_list()) return Rows{ctx->input(i), indices, nullptr};
    Result<tf::Tensor> ids = AllocateIds(
        ctx, indices.dtype(), static_cast<int64_t>(groups->ids.size()));
    if (!ids.ok()) return ids.status();
    WriteIds(asked.id_dtype, groups->ids, MutableData(ids.value()));
    return Rows{ctx->input(i), std::move(ids.value()), groups};
  }

  // The same with all rows of the table, zeros where there were none.
  Result<Rows> AllRows(tf::OpKernelContext* ctx, const Rows& some,
                       const std::vector<int64_t>& ids, const Signature& asked,
                       int64_t table_rows) const {
    Result<Rows> all = NewRows(ctx, some.values, some.ids, table_rows);
    if (!all.ok() || table_rows == 0) return all;
    std::vector<int64_t> every(static_cast<size_t>(table_rows));
    for (size_t k = 0; k < every.size(); ++k) {
      every[k] = static_cast<int64_t>(k);
    }
    WriteIds(asked.id_dtype, every, MutableData(all.value().ids));
    const auto row_bytes =
        static_cast<size_t>(all.value().values.TotalBytes()) / every.size();
    if (row_bytes == 0) return all;
    auto* const to = static_cast<char*>(all.value().values.data());
    const auto* const from = static_cast<const char*>(some.values.data());
    std::memset(to, 0, row_bytes * every.size());
    for (size_t k = 0; k < ids.size(); ++k) {
      std::memcpy(to + static_cast<size_t>(ids[k]) * row_bytes,
                  from + k * row_bytes, row_bytes);
    }
    return all;
  }

  // Memory for `count` rows like these.
  static Result<Rows> NewRows(tf::OpKernelContext* ctx,
                              const tf::Tensor& values,
                              const tf::Tensor& indices, int64_t count) {
    Shape shape = ToCore(values.shape());
    shape[0] = count;
    const Result<tf::TensorShape> tf_shape = ToTf(shape);
    if (!tf_shape.ok()) return tf_shape.status();
    Result<tf::Tensor> sums =
        AllocatePersistent(ctx, values.dtype(), tf_shape.value());
    if (!sums.ok()) return sums.status();
    Result<tf::Tensor> ids = AllocateIds(ctx, indices.dtype(), count);
    if (!ids.ok()) return ids.status();
    return Rows{std::move(sums.value()), std::move(ids.value()), nullptr};
  }

  static Result<tf::Tensor> AllocateIds(tf::OpKernelContext* ctx,
                                        tf::DataType dtype, int64_t count) {
    return AllocateOnHost(ctx, dtype, tf::TensorShape({count}));
  }

  static int64_t RowCount(const tf::Tensor& values) {
    int64_t count = 1;
    for (int d = 1; d < values.dims(); ++d) count *= values.dim_size(d);
    return count;
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
