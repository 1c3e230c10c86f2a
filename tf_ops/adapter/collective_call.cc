// SPDX-License-Identifier: Apache-2.0
// Takes a call to the runtime and back.
#include "adapter/collective_call.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "adapter/global_runtime.h"
#include "adapter/tf_bridge.h"
#include "core/quoted.h"
#include "tensorflow/core/platform/env.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

// The same status. If its cause has no tensor, it gets the name of the call.
Status WithTensor(const Status& status, const std::string& name) {
  if (status.cause() == nullptr || !status.cause()->tensor.empty()) {
    return status;
  }
  return Status(status.code(), status.message(),
                {status.cause()->kind, status.cause()->rank, name});
}

// What follows a call must not run on the background thread: it would hold all
// others up, and for ever if it waits for one.
void RunInNewThread(std::function<void()> run) {
  try {
    tf::Env::Default()->SchedClosure(run);
  } catch (const std::system_error&) {
    run();  // there are as many threads as there may be
  }
}

}  // namespace

CollectiveCall::CollectiveCall() : in_new_thread_(RunInNewThread) {}

void CollectiveCall::Reset() {
  DropBuffers();
  entry.request.error = Status::Ok();
  entry.splits.clear();
  entry.ready = nullptr;
  entry.done = nullptr;
  entry.runner = nullptr;
  entry.enqueued_ns = 0;
  tensors.clear();
  own_error_ = Status::Ok();
  cancellation_.reset();
}

void CollectiveCall::Withdraw(const TfStatus& why) {
  if (cancellation_.has_value()) cancellation_->Cancel(why);
}

void CollectiveCall::DropBuffers() {
  entry.inputs.clear();
  entry.groups.clear();
  entry.outputs.clear();
  entry.allocate = nullptr;
  on_success = nullptr;
}

Status Named(const std::string& name, const Status& status) {
  if (status.ok()) return status;
  return status.Reworded(Quoted(name) + ": " + status.message());
}

Status UnknownSet(int process_set_id) {
  return InvalidArgument("process set " + std::to_string(process_set_id) +
                         " is unknown; pass it to hvd.init(process_sets=...) "
                         "or hvd.add_process_set on every rank");
}

Result<ProcessSetPtr> FindMemberSet(const Runtime* runtime,
                                    int process_set_id) {
  if (runtime == nullptr) return NotInitialized();
  const ProcessSetPtr set = runtime->process_set(process_set_id);
  if (set == nullptr) return UnknownSet(process_set_id);
  if (set->rank < 0) {
    return InvalidArgument("rank " + std::to_string(runtime->topology().rank) +
                           " is not a member of process set " +
                           std::to_string(process_set_id) + " (ranks " +
                           RanksText(set->ranks) +
                           "); only its members may call collectives on it");
  }
  // A call in a set of one rank needs no other thread and no peer.
  if (set->ranks.size() > 1) HVD_RETURN_IF_ERROR(CheckNotForked());
  return set;
}

Result<int> RootWithin(const ProcessSet& set, int root_rank) {
  const auto found =
      std::lower_bound(set.ranks.begin(), set.ranks.end(), root_rank);
  if (found == set.ranks.end() || *found != root_rank) {
    return InvalidArgument("root_rank " + std::to_string(root_rank) +
                           " is not a rank of process set " +
                           std::to_string(set.id) + " (ranks " +
                           RanksText(set.ranks) + "); use one of these");
  }
  return static_cast<int>(found - set.ranks.begin());
}

void CollectiveCall::Done(const Status& status) {
  cancellation_->Finish();
  Status result = own_error_.ok() ? status : own_error_;
  if (on_success) {
    if (result.ok()) result = on_success();
    on_success = nullptr;
  }
  // The wire has let go of the tensors. So what follows may write to the
  // outputs in place, and the inputs' memory is free.
  if (result.ok()) tensors.clear();
  const std::string& name = entry.request.key.name;
  result = WithTensor(result, name);
  GetFailedCalls().Ended(name, result);
  End(ToTf(result));
}

bool CollectiveCall::Prepare(const std::shared_ptr<Runtime>& runtime,
                             const ProcessSet& set, const CallSite& site,
                             const std::string& name) {
  entry.request.key.name = name;
  entry.request.key.instance = site.instance;
  entry.request.step = site.step;
  entry.runner = site.runs_inline ? &in_new_thread_ : site.runner;
  entry.ticket = runtime->NewTicket();
  StepCancellation& cancellation =
      cancellation_.emplace(runtime, set.serial, entry.ticket, site);
  if (const Status why = cancellation.Register(); !why.ok()) {
    runtime->AbortStep(set, entry.request.key, entry.request.step, why);
    cancellation.Finish();
    End(ToTf(why));
    return false;
  }
  // The peers' error names this rank. This rank's own error does not.
  own_error_ = Named(name, entry.request.error);
  // Code that runs `done` holds the entry, and so the call.
  entry.done = [this](const Status& status) { Done(status); };
  return true;
}

void SubmitCall(const std::shared_ptr<Runtime>& runtime, const ProcessSet& set,
                const CallSite& site, const std::string& name,
                const std::shared_ptr<CollectiveCall>& call) {
  if (!call->Prepare(runtime, set, site, name)) return;
  runtime->Enqueue(set, EntryPtr(call, &call->entry));
  call->cancellation_->Enqueued(runtime.get());
}

void SubmitCalls(const std::shared_ptr<Runtime>& runtime, const ProcessSet& set,
                 const CallSite& site, const std::vector<std::string>& names,
                 const std::vector<std::shared_ptr<CollectiveCall>>& calls) {
  std::vector<EntryPtr> entries;
  std::vector<CollectiveCall*> enqueued;
  entries.reserve(calls.size());
  enqueued.reserve(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i]->Prepare(runtime, set, site, names[i])) continue;
    entries.emplace_back(calls[i], &calls[i]->entry);
    enqueued.push_back(calls[i].get());
  }
  runtime->Enqueue(set, std::move(entries));
  for (CollectiveCall* call : enqueued) {
    call->cancellation_->Enqueued(runtime.get());
  }
}

}  // namespace hvd
