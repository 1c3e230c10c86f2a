// SPDX-License-Identifier: Apache-2.0
// What kernels of several verbs do with their inputs and attributes.
#ifndef HVD_ADAPTER_KERNEL_INPUTS_H_
#define HVD_ADAPTER_KERNEL_INPUTS_H_

#include <string>
#include <vector>

#include "adapter/collective_call.h"
#include "adapter/eager_words.h"
#include "adapter/tf_compat.h"
#include "core/request.h"
#include "core/runtime.h"
#include "core/status.h"
#include "core/types.h"

namespace hvd {

// Fills in the dtype of `count` inputs from `first` on, which is one for all,
// and their shapes.
[[nodiscard]] Status DescribeInputs(tensorflow::OpKernelContext* ctx, int count,
                                    Signature* signature, int first = 0);

// Whether the inputs from `first` on have these shapes.
[[nodiscard]] bool HaveShapes(tensorflow::OpKernelContext* ctx,
                              const std::vector<Shape>& shapes, int first);

// In a set of one rank: what a transport checks in larger ones. The tensors of
// the call `name` are the inputs from `first` on.
[[nodiscard]] Status CheckFinite(tensorflow::OpKernelContext* ctx,
                                 const Runtime& runtime,
                                 const std::string& name,
                                 const Signature& asked, int first);

// An error if one of the shapes has no rows for the signature's verb.
[[nodiscard]] Status RefuseScalars(const Signature& signature);

// Hands the first `count` inputs to the call, which keeps them.
void BindInputs(tensorflow::OpKernelContext* ctx, int count,
                CollectiveCall* call);

// Hands an input that is reduced to the call, and its output. The output may be
// the input's memory.
[[nodiscard]] Status BindReduced(tensorflow::OpKernelContext* ctx, int index,
                                 CollectiveCall* call);

// Sets outputs that share the inputs' memory. There is nothing to compute.
[[nodiscard]] Status PassInputsOn(tensorflow::OpKernelContext* ctx);

// The attributes of verbs that reduce. A kernel reads them once.
class ReductionAttributes {
 public:
  // Not Ok: TensorFlow does not know the attributes.
  [[nodiscard]] TfStatus Read(tensorflow::OpKernelConstruction* ctx);

  // Fills in the reduction of a described call. The dtype must be there. An
  // attribute that makes no sense is an error of the call, so that the peers
  // hear of it.
  [[nodiscard]] Status Describe(Signature* signature) const;

 private:
  int reduce_op_ = 0;
  double prescale_ = 1.0;
  double postscale_ = 1.0;
  std::string wire_dtype_;
  Status scales_;  // whether they are numbers
};

// Fills in the scales of a call whose attributes have none.
[[nodiscard]] Status SetScales(const EagerWords& words, Signature* signature);

// Whether a set of one rank needs no transport for a call whose tensors are in
// `memory`.
[[nodiscard]] bool PassesAlone(MemoryKind memory, const Runtime& runtime,
                               const Signature& asked);

// Reduces the inputs from `first` on in a set of one rank.
[[nodiscard]] Status ReduceAlone(tensorflow::OpKernelContext* ctx,
                                 const Signature& asked, int first = 0);

}  // namespace hvd

#endif  // HVD_ADAPTER_KERNEL_INPUTS_H_
