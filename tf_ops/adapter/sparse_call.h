// SPDX-License-Identifier: Apache-2.0
// What the kernels of sparse allreduces do for one call.
#ifndef HVD_ADAPTER_SPARSE_CALL_H_
#define HVD_ADAPTER_SPARSE_CALL_H_

#include <cstdint>

#include "adapter/collective_call.h"
#include "adapter/kernel_inputs.h"
#include "adapter/tf_compat.h"
#include "core/request.h"
#include "core/status.h"
#include "core/types.h"

namespace hvd {

// The tables of a call among those of a kernel. The kernel's inputs are the
// values of all tables, then their indices, then their dense shapes. Its
// outputs are all sums and then all united indices.
struct SparseTables {
  tensorflow::OpKernelContext* ctx = nullptr;
  int all = 0;    // of the kernel
  int first = 0;  // of the call
  int count = 0;  // of the call

  const tensorflow::Tensor& values(int i) const {
    return ctx->input(first + i);
  }
  const tensorflow::Tensor& indices(int i) const {
    return ctx->input(all + first + i);
  }
  const tensorflow::Tensor& dense_shape(int i) const {
    return ctx->input(2 * all + first + i);
  }
  int sums_output(int i) const { return first + i; }
  int indices_output(int i) const { return all + first + i; }
};

// Fills in the signature, whose memory is known, and checks the inputs.
[[nodiscard]] Status DescribeSparse(const SparseTables& tables,
                                    const ReductionAttributes& reduction,
                                    Signature* signature);

// Hands the rows of a described call to it, each id once. The outputs are
// allocated when their rows are known.
[[nodiscard]] Status BindSparse(const SparseTables& tables,
                                CollectiveCall* call);

// Runs a described call in a set of one rank, in host memory.
[[nodiscard]] Status ReduceSparseAlone(const SparseTables& tables,
                                       const Signature& asked);

}  // namespace hvd

#endif  // HVD_ADAPTER_SPARSE_CALL_H_
