// SPDX-License-Identifier: Apache-2.0
// CollectiveCall: one entry that a kernel hands to the runtime.
#ifndef HVD_ADAPTER_COLLECTIVE_CALL_H_
#define HVD_ADAPTER_COLLECTIVE_CALL_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "adapter/tf_compat.h"
#include "core/request.h"
#include "core/runtime.h"
#include "core/status.h"

namespace hvd {

struct CollectiveCall {
  // Without key, step, ticket, keep_alive and done.
  Entry entry;
  // Inputs and outputs: kept until the wire has let go of them.
  std::shared_ptr<std::vector<tensorflow::Tensor>> tensors =
      std::make_shared<std::vector<tensorflow::Tensor>>();
  // Runs on success, before TensorFlow's done; may be empty.
  std::function<Status()> on_success;

  // For an entry with an error: nothing of it is read or written.
  void DropBuffers();
};

using CallDone = std::function<void(const TfStatus& status)>;

// Enqueues the call under `name`, which the ranks match by, as part of the
// kernel's TensorFlow step: it is withdrawn when that is aborted. `done` is
// called once, from any thread; an error names the tensor.
void SubmitCall(std::shared_ptr<Runtime> runtime, int process_set_id,
                tensorflow::OpKernelContext* ctx, const std::string& name,
                CollectiveCall call, CallDone done);

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
