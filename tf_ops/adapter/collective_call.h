// SPDX-License-Identifier: Apache-2.0
// CollectiveCall: one entry that a kernel hands to the runtime.
#ifndef HVD_ADAPTER_COLLECTIVE_CALL_H_
#define HVD_ADAPTER_COLLECTIVE_CALL_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "adapter/step_cancellation.h"
#include "adapter/tf_compat.h"
#include "core/request.h"
#include "core/runtime.h"
#include "core/status.h"

namespace hvd {

// Made by a kernel, kept alive by the runtime as long as its entry.
class CollectiveCall {
 public:
  virtual ~CollectiveCall() = default;

  // For an entry with an error: nothing of it is read or written.
  void DropBuffers();

  // Without key, step, ticket, runner and done.
  Entry entry;
  // Inputs and outputs: kept until the wire has let go of them, which after an
  // error is later than End. Two of each call, but for groups.
  absl::InlinedVector<tensorflow::Tensor, 2> tensors;
  // Runs on success, before End; may be empty.
  std::function<Status()> on_success;

 private:
  friend void SubmitCall(std::shared_ptr<Runtime> runtime, int process_set_id,
                         tensorflow::OpKernelContext* ctx,
                         const std::string& name,
                         std::shared_ptr<CollectiveCall> call);

  // Called once, from any thread; an error names the tensor. Must lead to the
  // kernel's done, and let go of it.
  virtual void End(const TfStatus& status) = 0;

  // The entry's done.
  void Done(const Status& status);

  // What this rank's user is told of an entry with an error of its own.
  Status own_error_;
  std::optional<StepCancellation> cancellation_;
};

// Enqueues the call under `name`, which the ranks match by, as part of the
// kernel's TensorFlow step: it is withdrawn when that is aborted.
void SubmitCall(std::shared_ptr<Runtime> runtime, int process_set_id,
                tensorflow::OpKernelContext* ctx, const std::string& name,
                std::shared_ptr<CollectiveCall> call);

// The same error, with the name that ranks match by before its text.
[[nodiscard]] Status Named(const std::string& name, const Status& status);

// The process set of a call, or why this rank cannot take part in it. Keep
// `runtime` as long as the pointer.
[[nodiscard]] Result<const ProcessSet*> FindMemberSet(const Runtime* runtime,
                                                      int process_set_id);

// The place of `root_rank`, a rank of the job, among the set's ranks.
[[nodiscard]] Result<int> RootWithin(const ProcessSet& set, int process_set_id,
                                     int root_rank);

}  // namespace hvd

#endif  // HVD_ADAPTER_COLLECTIVE_CALL_H_
