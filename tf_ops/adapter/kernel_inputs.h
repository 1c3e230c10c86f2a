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
#include "core/status.h"

namespace hvd {

// Fills in the dtype of the first `count` inputs, which is one for all, and
// their shapes.
[[nodiscard]] Status DescribeInputs(tensorflow::OpKernelContext* ctx, int count,
                                    Signature* signature);

// Whether the first inputs have these shapes.
[[nodiscard]] bool HaveShapes(tensorflow::OpKernelContext* ctx,
                              const std::vector<Shape>& shapes);

// An error if one of the shapes has no rows for the signature's verb.
[[nodiscard]] Status RefuseScalars(const Signature& signature);

// Hands the first `count` inputs to the call, which keeps them.
void BindInputs(tensorflow::OpKernelContext* ctx, int count,
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

// Reduces the inputs in a set of one rank.
[[nodiscard]] Status ReduceAlone(tensorflow::OpKernelContext* ctx,
                                 const Signature& asked);

}  // namespace hvd

#endif  // HVD_ADAPTER_KERNEL_INPUTS_H_
