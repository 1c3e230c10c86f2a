// SPDX-License-Identifier: Apache-2.0
// CollectiveKernel: what the kernels of all data verbs have in common.
#ifndef HVD_ADAPTER_COLLECTIVE_KERNEL_H_
#define HVD_ADAPTER_COLLECTIVE_KERNEL_H_

#include <memory>
#include <string>

#include "adapter/collective_call.h"
#include "adapter/eager_words.h"
#include "adapter/kept_calls.h"
#include "adapter/kernel_call.h"
#include "adapter/tf_compat.h"
#include "core/request.h"
#include "core/runtime.h"
#include "core/status.h"
#include "core/types.h"

namespace hvd {

// Turns one call of a TensorFlow op into one Entry of the runtime.
//
// Each verb implements three functions. Describe says what the call asks for.
// Bind says where its buffers are. ComputeAlone computes it in a set of one
// rank. The rest is here and in SubmitCall. TensorFlow owns the kernel. It
// may run several calls at a time.
class CollectiveKernel : public tensorflow::AsyncOpKernel {
 public:
  void ComputeAsync(tensorflow::OpKernelContext* ctx, DoneCallback done) final;

 protected:
  explicit CollectiveKernel(tensorflow::OpKernelConstruction* ctx);

  // Fills the signature with its shapes, and checks what this rank can check
  // alone. An error fails the call on every rank. The signature still travels
  // then, so what is filled in must be valid.
  virtual Status Describe(tensorflow::OpKernelContext* ctx,
                          const ProcessSet& set, Signature* signature) = 0;

  // Sets the inputs, the outputs or `allocate`, and the tensors of a described
  // call.
  virtual Status Bind(tensorflow::OpKernelContext* ctx, const ProcessSet& set,
                      CollectiveCall* call) = 0;

  // Runs the whole call in a set of one rank: at once, in TensorFlow's thread.
  virtual Status ComputeAlone(tensorflow::OpKernelContext* ctx,
                              const Signature& signature) = 0;

  // Whether the signature depends on nothing but the attributes, the set, and
  // the inputs' shapes. It is then described once for each shape.
  virtual bool FollowsInputs() const { return true; }

  int process_set_id() const { return process_set_id_; }
  MemoryKind memory() const { return memory_; }

 private:
  // Runs a call of that name. `words` may be null.
  void Run(tensorflow::OpKernelContext* ctx, const std::string& name,
           const EagerWords* words, DoneCallback done);

  // Describes the call, unless its request is that of this run already. That of
  // a call with words never is.
  void DescribeCall(tensorflow::OpKernelContext* ctx,
                    const std::shared_ptr<Runtime>& runtime,
                    const ProcessSet& set, const EagerWords* words,
                    KernelCall* call);

  const MemoryKind memory_;
  std::string tensor_name_;
  int words_place_ = -1;  // see PlaceOfWords
  int process_set_id_ = 0;
  const std::shared_ptr<KeptCalls<KernelCall>> calls_ =
      std::make_shared<KeptCalls<KernelCall>>();
};

}  // namespace hvd

#endif  // HVD_ADAPTER_COLLECTIVE_KERNEL_H_
