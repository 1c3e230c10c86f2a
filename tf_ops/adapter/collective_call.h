// SPDX-License-Identifier: Apache-2.0
// CollectiveCall: one entry that a kernel hands to the runtime.
#ifndef HVD_ADAPTER_COLLECTIVE_CALL_H_
#define HVD_ADAPTER_COLLECTIVE_CALL_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "adapter/call_site.h"
#include "adapter/step_cancellation.h"
#include "adapter/tf_compat.h"
#include "core/request.h"
#include "core/runtime.h"
#include "core/status.h"

namespace hvd {

// A kernel makes it. The runtime keeps it alive as long as its entry.
class CollectiveCall {
 public:
  CollectiveCall();
  virtual ~CollectiveCall() = default;

  // The call has ended, and the wire has let go of its buffers. Makes it fit
  // for another call. The request and its number stay.
  void Reset();

  // The call's step is about to be aborted with this error of another call. A
  // call that waits ends.
  void Withdraw(const TfStatus& why);

  // For an entry with an error. Nothing reads or writes its buffers then.
  void DropBuffers();

  // The kernel fills it in, except for key, step, ticket, number, runner and
  // done.
  Entry entry;
  // Inputs and outputs. They are kept until the wire has let go of them. After
  // an error that is later than End. A call has two of them, but for groups.
  absl::InlinedVector<tensorflow::Tensor, 2> tensors;
  // Runs on success, before End. May be empty.
  std::function<Status()> on_success;

 private:
  friend void SubmitCall(const std::shared_ptr<Runtime>& runtime,
                         const ProcessSet& set, const CallSite& site,
                         const std::string& name,
                         const std::shared_ptr<CollectiveCall>& call);
  friend void SubmitCalls(
      const std::shared_ptr<Runtime>& runtime, const ProcessSet& set,
      const CallSite& site, const std::vector<std::string>& names,
      const std::vector<std::shared_ptr<CollectiveCall>>& calls);

  // Makes the entry ready to be enqueued. False: the step is aborted already,
  // and the call has ended.
  bool Prepare(const std::shared_ptr<Runtime>& runtime, const ProcessSet& set,
               const CallSite& site, const std::string& name);

  // Called once, from any thread. An error names the tensor. It must call the
  // kernel's done, now or later, and release it.
  virtual void End(const TfStatus& status) = 0;

  // The entry's done.
  void Done(const Status& status);

  // The error that this rank's user gets for an entry with an error.
  Status own_error_;
  std::optional<StepCancellation> cancellation_;
  // For a step without threads. Each call has its own, because all calls of one
  // runner are answered one after another.
  const Runner in_new_thread_;
};

// Enqueues the call under `name`, which the ranks match by. The call is part of
// the site's step. It is withdrawn when the step is aborted.
void SubmitCall(const std::shared_ptr<Runtime>& runtime, const ProcessSet& set,
                const CallSite& site, const std::string& name,
                const std::shared_ptr<CollectiveCall>& call);
// The same for several, which the background thread takes at once.
void SubmitCalls(const std::shared_ptr<Runtime>& runtime, const ProcessSet& set,
                 const CallSite& site, const std::vector<std::string>& names,
                 const std::vector<std::shared_ptr<CollectiveCall>>& calls);

// The same error. Its text begins with the name that the ranks match by.
[[nodiscard]] Status Named(const std::string& name, const Status& status);

// The process set of a call, as it is now. The error says why this rank cannot
// take part in it.
[[nodiscard]] Result<ProcessSetPtr> FindMemberSet(const Runtime* runtime,
                                                  int process_set_id);

// What to do about an id that no set has.
[[nodiscard]] Status UnknownSet(int process_set_id);

// The place of `root_rank`, a rank of the job, among the set's ranks.
[[nodiscard]] Result<int> RootWithin(const ProcessSet& set, int root_rank);

}  // namespace hvd

#endif  // HVD_ADAPTER_COLLECTIVE_CALL_H_
