// SPDX-License-Identifier: Apache-2.0
// Describes and binds the rows of tables.
#include "adapter/sparse_call.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "adapter/global_runtime.h"
#include "adapter/sparse_rows.h"
#include "adapter/tf_bridge.h"
#include "core/rows.h"
#include "cpu/elementwise.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

// -1: not known.
int64_t TableRows(const tf::Tensor& dense_shape) {
  return dense_shape.NumElements() == 0 ? -1 : dense_shape.flat<int64_t>()(0);
}

SparseRows GivenRows(const SparseTables& tables, int i) {
  return {tables.values(i), tables.indices(i), nullptr};
}

Status Allocate(const SparseTables& tables, const std::vector<Shape>& shapes,
                CollectiveCall* call, std::vector<void*>* outputs) {
  outputs->clear();
  for (int i = 0; i < tables.count; ++i) {
    const Result<tf::TensorShape> shape = ToTf(shapes[i]);
    if (!shape.ok()) return shape.status();
    for (auto [index, its_shape] :
         {std::make_pair(tables.sums_output(i), shape.value()),
          std::make_pair(tables.indices_output(i),
                         tf::TensorShape({shapes[i][0]}))}) {
      Result<tf::Tensor> output =
          AllocateLateOutput(tables.ctx, index, its_shape);
      if (!output.ok()) return output.status();
      outputs->push_back(MutableData(output.value()));
      call->tensors.push_back(std::move(output.value()));
    }
  }
  return Status::Ok();
}

}  // namespace

Status DescribeSparse(const SparseTables& tables,
                      const ReductionAttributes& reduction,
                      Signature* signature) {
  tf::OpKernelContext* const ctx = tables.ctx;
  signature->verb = Verb::kSparseAllreduce;
  // There is one for each shape, also where the inputs are invalid.
  signature->table_rows.assign(static_cast<size_t>(tables.count), -1);
  HVD_RETURN_IF_ERROR(
      DescribeInputs(ctx, tables.count, signature, tables.first));
  for (int i = 0; i < tables.count; ++i) {
    signature->table_rows[i] = TableRows(tables.dense_shape(i));
  }
  signature->id_dtype = tables.indices(0).dtype() == tf::DT_INT32
                            ? DataType::kInt32
                            : DataType::kInt64;
  const std::shared_ptr<Runtime> runtime = GetRuntime();
  // The option says what goes between hosts. On GPUs nothing of it is used.
  if (runtime != nullptr && signature->memory == MemoryKind::kHost) {
    signature->sparse_algo = runtime->options().sparse_algo;
  }
  HVD_RETURN_IF_ERROR(RefuseScalars(*signature));
  HVD_RETURN_IF_ERROR(reduction.Describe(signature));
  if (signature->reduce_op != ReduceOp::kSum &&
      signature->reduce_op != ReduceOp::kAverage) {
    return InvalidArgument("sparse_allreduce adds up rows, so it cannot do " +
                           std::string(Name(signature->reduce_op)) +
                           "; use Average or Sum");
  }
  for (int i = 0; i < tables.count; ++i) {
    HVD_RETURN_IF_ERROR(CheckIndices(tables.values(i), tables.indices(i),
                                     signature->id_dtype,
                                     signature->table_rows[i]));
  }
  return Status::Ok();
}

Status BindSparse(const SparseTables& tables, CollectiveCall* call) {
  Signature* const signature = &call->entry.request.signature;
  for (int i = 0; i < tables.count; ++i) {
    Result<SparseRows> rows =
        signature->memory == MemoryKind::kHost
            ? UniqueRows(tables.ctx, GivenRows(tables, i), *signature,
                         signature->table_rows[i])
            : ListedRows(tables.ctx, GivenRows(tables, i), *signature);
    if (!rows.ok()) return rows.status();
    signature->shapes[i][0] = rows.value().ids.dim_size(0);
    call->entry.inputs.push_back(MutableData(rows.value().values));
    call->entry.inputs.push_back(MutableData(rows.value().ids));
    call->entry.groups.push_back(std::move(rows.value().groups));
    call->tensors.push_back(std::move(rows.value().values));
    call->tensors.push_back(std::move(rows.value().ids));
  }
  call->entry.allocate = [tables, call](const std::vector<Shape>& shapes,
                                        RankCountsSpan /*rows*/,
                                        std::vector<void*>* outputs) {
    return Allocate(tables, shapes, call, outputs);
  };
  return Status::Ok();
}

Status ReduceSparseAlone(const SparseTables& tables, const Signature& asked) {
  for (int i = 0; i < tables.count; ++i) {
    const Result<SparseRows> rows = UniqueRows(tables.ctx, GivenRows(tables, i),
                                               asked, asked.table_rows[i]);
    if (!rows.ok()) return rows.status();
    const tf::Tensor& values = rows.value().values;
    const Result<tf::Tensor> output =
        AllocateOutput(tables.ctx, tables.sums_output(i), values.shape());
    if (!output.ok()) return output.status();
    AllreduceAlone(asked.dtype, asked.wire_dtype, asked.reduce_op,
                   MutableData(values), MutableData(output.value()),
                   values.NumElements(), asked.prescale, asked.postscale);
    tables.ctx->set_output(tables.indices_output(i), rows.value().ids);
  }
  return Status::Ok();
}

}  // namespace hvd
