// SPDX-License-Identifier: Apache-2.0
// CollectiveKernel: what the kernels of all data verbs have in common.
#ifndef HVD_ADAPTER_COLLECTIVE_KERNEL_H_
#define HVD_ADAPTER_COLLECTIVE_KERNEL_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "adapter/tf_compat.h"
#include "core/request.h"
#include "core/runtime.h"
#include "core/status.h"

namespace hvd {

// Turns one call of a TensorFlow op into one Entry of the runtime.
//
// A verb says what it asks for (Describe), where its buffers lie (Bind) and
// what it amounts to among one rank (ComputeAlone); naming, cancellation,
// errors and completion are here. TensorFlow owns the kernel, which has no
// state but its attributes and may run several calls at a time.
class CollectiveKernel : public tensorflow::AsyncOpKernel {
 public:
  void ComputeAsync(tensorflow::OpKernelContext* ctx, DoneCallback done) final;

 protected:
  using Tensors = std::vector<tensorflow::Tensor>;

  explicit CollectiveKernel(tensorflow::OpKernelConstruction* ctx);

  // One call under way.
  struct Call {
    Entry entry;
    // Inputs and outputs: kept until the wire has let go of them.
    std::shared_ptr<Tensors> tensors = std::make_shared<Tensors>();
    // Runs on success, before TensorFlow's done; may be empty.
    std::function<Status()> on_success;
  };

  // Fills the signature, the shapes included, and checks what this rank can
  // check alone. An error fails the call on every rank; the signature, as far
  // as it is filled then, holds valid values only: it still travels.
  virtual Status Describe(tensorflow::OpKernelContext* ctx,
                          const ProcessSet& set, Signature* signature) = 0;

  // Sets inputs, outputs (or allocate) and tensors of a described call.
  virtual Status Bind(tensorflow::OpKernelContext* ctx, const ProcessSet& set,
                      Call* call) = 0;

  // The whole call, in a set of one rank: in TensorFlow's thread, at once.
  virtual Status ComputeAlone(tensorflow::OpKernelContext* ctx,
                              const Signature& signature) = 0;

  // The place of `root_rank`, a rank of the job, among the set's ranks.
  static Result<int> RootWithin(const ProcessSet& set, int process_set_id,
                                int root_rank);

  int process_set_id() const { return process_set_id_; }

 private:
  Key MakeKey(tensorflow::OpKernelContext* ctx) const;
  // The same error, with the name that ranks match by before its text.
  Status Named(const Status& status) const;
  void Submit(std::shared_ptr<Runtime> runtime,
              tensorflow::OpKernelContext* ctx, Call call, DoneCallback done);

  MemoryKind memory_ = MemoryKind::kHost;
  std::string tensor_name_;
  int process_set_id_ = 0;
};

// The process set of a call, or why this rank cannot take part in it. Keep
// `runtime` as long as the pointer.
[[nodiscard]] Result<const ProcessSet*> FindMemberSet(const Runtime* runtime,
                                                      int process_set_id);

}  // namespace hvd

#endif  // HVD_ADAPTER_COLLECTIVE_KERNEL_H_
