// SPDX-License-Identifier: Apache-2.0
// Finds rows of equal id, and adds them up where the host does that.
#include "adapter/sparse_rows.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "adapter/tf_bridge.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

Result<tf::Tensor> AllocateIds(tf::OpKernelContext* ctx, tf::DataType dtype,
                               int64_t count) {
  return AllocateOnHost(ctx, dtype, tf::TensorShape({count}));
}

int64_t RowCount(const tf::Tensor& values) {
  int64_t count = 1;
  for (int d = 1; d < values.dims(); ++d) count *= values.dim_size(d);
  return count;
}

// Memory for `count` rows like these.
Result<SparseRows> NewRows(tf::OpKernelContext* ctx, const tf::Tensor& values,
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
  return SparseRows{std::move(sums.value()), std::move(ids.value()), nullptr};
}

// These with all rows of the table, zeros where there were none.
Result<SparseRows> AllRows(tf::OpKernelContext* ctx, const SparseRows& some,
                           const std::vector<int64_t>& ids,
                           const Signature& asked, int64_t table_rows) {
  Result<SparseRows> all = NewRows(ctx, some.values, some.ids, table_rows);
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

}  // namespace

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

Result<SparseRows> UniqueRows(tf::OpKernelContext* ctx, const SparseRows& given,
                              const Signature& asked, int64_t table_rows) {
  const tf::Tensor& values = given.values;
  const tf::Tensor& indices = given.ids;
  const RowGroups groups =
      GroupRows(asked.id_dtype, MutableData(indices), indices.NumElements());
  const bool is_dense =
      asked.sparse_algo == SparseAlgo::kDense && table_rows >= 0;
  if (groups.is_list() && !is_dense) return given;
  Result<SparseRows> rows =
      NewRows(ctx, values, indices, static_cast<int64_t>(groups.ids.size()));
  if (!rows.ok()) return rows;
  SumGroups(asked.dtype, groups, MutableData(values), RowCount(values),
            MutableData(rows.value().values));
  WriteIds(asked.id_dtype, groups.ids, MutableData(rows.value().ids));
  return is_dense ? AllRows(ctx, rows.value(), groups.ids, asked, table_rows)
                  : rows;
}

Result<SparseRows> ListedRows(tf::OpKernelContext* ctx, const SparseRows& given,
                              const Signature& asked) {
  const tf::Tensor& indices = given.ids;
  const auto groups = std::make_shared<RowGroups>(
      GroupRows(asked.id_dtype, MutableData(indices), indices.NumElements()));
  if (groups->is_list()) return given;
  Result<tf::Tensor> ids = AllocateIds(
      ctx, indices.dtype(), static_cast<int64_t>(groups->ids.size()));
  if (!ids.ok()) return ids.status();
  WriteIds(asked.id_dtype, groups->ids, MutableData(ids.value()));
  return SparseRows{given.values, std::move(ids.value()), groups};
}

}  // namespace hvd
