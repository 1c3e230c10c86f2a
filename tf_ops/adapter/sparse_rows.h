// SPDX-License-Identifier: Apache-2.0
// The rows of a sparse allreduce that a rank has, each id once.
//
// A rank's rows of equal id are added up in TensorFlow's thread, before the
// call is handed to the runtime. So the ranks' threads do that at once, and the
// background thread has less to move. Rows on a GPU are left to its lane, which
// is told what to add up. Ids are in host memory always.
#ifndef HVD_ADAPTER_SPARSE_ROWS_H_
#define HVD_ADAPTER_SPARSE_ROWS_H_

#include <cstdint>
#include <memory>

#include "adapter/tf_compat.h"
#include "core/request.h"
#include "core/status.h"
#include "cpu/row_groups.h"

namespace hvd {

// Rows of a table.
struct SparseRows {
  tensorflow::Tensor values;
  tensorflow::Tensor ids;
  // See Segment::groups. Null: each value is of the id at its place.
  std::shared_ptr<const RowGroups> groups;
};

// Whether the indices of a tensor can be those of its rows. `table_rows` is -1
// where it is not known.
[[nodiscard]] Status CheckIndices(const tensorflow::Tensor& values,
                                  const tensorflow::Tensor& indices,
                                  DataType id_dtype, int64_t table_rows);

// The rows by ascending id, each once: those of equal id are added up. All rows
// of the table, if that is asked for and known.
[[nodiscard]] Result<SparseRows> UniqueRows(tensorflow::OpKernelContext* ctx,
                                            const SparseRows& given,
                                            const Signature& asked,
                                            int64_t table_rows);

// The same ids, of rows that nobody adds up here.
[[nodiscard]] Result<SparseRows> ListedRows(tensorflow::OpKernelContext* ctx,
                                            const SparseRows& given,
                                            const Signature& asked);

}  // namespace hvd

#endif  // HVD_ADAPTER_SPARSE_ROWS_H_
