// SPDX-License-Identifier: Apache-2.0
// Withdraws the entries of a TensorFlow step that is aborted.
#include "adapter/step_cancellation.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "adapter/tf_bridge.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

// What a call of a step is told of the error that aborts the step.
Status AsFirstError(const TfStatus& error) {
  if (std::optional<Status> known = WithCause(error)) return *std::move(known);
  // Only the first line. The rest is TensorFlow's list of operations.
  std::string text(error.message());
  text.resize(std::min(text.find('\n'), text.size()));
  return Cancelled(std::move(text));
}

// TensorFlow's cancellation says that a step ends, but not why. But the
// executor first aborts the step's rendezvous with the first error. A
// rendezvous that was aborted answers every Send with that error. An error of a
// collective of the step comes back with its cause.
Status FirstErrorOfStep(tf::RendezvousInterface* rendezvous, uint64_t ticket) {
  const Status unknown = Cancelled("the step was cancelled");
  if (rendezvous == nullptr) return unknown;
  // A key that no device and no edge of a graph has.
  const std::string device = "/job:localhost/replica:0/task:0/device:CPU:0";
  const std::string key = tf::Rendezvous::CreateKey(
      device, 1, device, "hvd_probe_" + std::to_string(ticket),
      tf::FrameAndIter(0, 0));
  tf::Rendezvous::ParsedKey parsed;
  if (!tf::Rendezvous::ParseKey(key, &parsed).ok()) return unknown;
  const tf::Rendezvous::Args args;
  const TfStatus sent = rendezvous->Send(parsed, args, tf::Tensor(), false);
  if (sent.ok()) {
    // The step was not aborted: the cancellation came from outside. Take the
    // probe out again.
    rendezvous->RecvAsync(
        parsed, args,
        [](const TfStatus&, const tf::Rendezvous::Args&,
           const tf::Rendezvous::Args&, const tf::Tensor&, bool) {});
    return unknown;
  }
  return AsFirstError(sent);
}

struct DueCancel {
  std::shared_ptr<Runtime> runtime;
  int set_serial;
  uint64_t ticket;
  Status why;
};

}  // namespace

// The calls that wait, by step. There is one object for the process. One mutex
// guards all, because it is held for a few instructions only, except when a
// step is aborted.
class StepWatches {
 public:
  static StepWatches& Get() {
    // Never destroyed, like the runtime.
    static StepWatches* const watches =
        std::make_unique<StepWatches>().release();
    return *watches;
  }

  // False: the step is already being aborted.
  bool Add(StepCancellation* call) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto [found, added] = watches_.try_emplace(call->manager_);
    Watch& watch = found->second;
    if (added && !Register(call->manager_, &watch)) watch.cancelled = true;
    if (watch.cancelled) {
      if (watch.first == nullptr) watches_.erase(found);
      return false;
    }
    call->next_ = watch.first;
    if (watch.first != nullptr) watch.first->previous_ = call;
    watch.first = call;
    return true;
  }

  // Does nothing for a call that has finished, or is cancelled already.
  void Cancel(StepCancellation* call, Status why) {
    std::shared_ptr<Runtime> runtime;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (call->runtime_ == nullptr || !call->why_.ok()) return;
      runtime = call->runtime_;
      call->why_ = why;
    }
    const int before = call->state_.fetch_or(StepCancellation::kCancelled);
    if ((before & StepCancellation::kEnqueued) == 0) return;
    runtime->Cancel(call->set_serial_, call->ticket_, std::move(why));
  }

  // Does nothing for a call that was not added.
  void Remove(StepCancellation* call) {
    tf::CancellationToken unused;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      call->rendezvous_ = nullptr;
      call->runtime_ = nullptr;
      const auto found = watches_.find(call->manager_);
      if (found == watches_.end()) return;
      Watch& watch = found->second;
      const bool added = call->previous_ != nullptr || watch.first == call;
      if (!added) return;
      if (call->next_ != nullptr) call->next_->previous_ = call->previous_;
      (call->previous_ != nullptr ? call->previous_->next_ : watch.first) =
          call->next_;
      call->previous_ = call->next_ = nullptr;
      if (watch.first != nullptr) return;
      unused = watch.token;
      watches_.erase(found);
    }
    // DeregisterCallback would wait for the callbacks of all other kernels, and
    // this is the background thread. The manager still exists, because the step
    // lives until this call's kernel is done.
    call->manager_->TryDeregisterCallback(unused);
  }

 private:
  struct Watch {
    tf::CancellationToken token = 0;
    bool cancelled = false;
    StepCancellation* first = nullptr;
  };

  bool Register(tf::CancellationManager* manager, Watch* watch) {
    const tf::CancellationToken token = manager->get_cancellation_token();
    watch->token = token;
    return manager->RegisterCallback(
        token, [this, manager, token] { OnCancel(manager, token); });
  }

  // The watch may be gone. Then another one may be in its place, with another
  // token.
  void OnCancel(tf::CancellationManager* manager, tf::CancellationToken token) {
    std::vector<DueCancel> due;
    {
      // Held while the steps are asked, because `done` must not free them
      // meanwhile.
      std::lock_guard<std::mutex> lock(mutex_);
      const auto found = watches_.find(manager);
      if (found == watches_.end() || found->second.token != token) return;
      found->second.cancelled = true;
      tf::RendezvousInterface* asked = nullptr;
      Status why;
      for (StepCancellation* call = found->second.first; call != nullptr;
           call = call->next_) {
        if (!call->why_.ok()) continue;  // it is cancelled already
        if (why.ok() || call->rendezvous_ != asked) {
          asked = call->rendezvous_;
          why = FirstErrorOfStep(asked, call->ticket_);
        }
        call->why_ = why;
        if (call->state_.fetch_or(StepCancellation::kCancelled) &
            StepCancellation::kEnqueued) {
          due.push_back(
              {call->runtime_, call->set_serial_, call->ticket_, why});
        }
      }
    }
    for (DueCancel& cancel : due) {
      cancel.runtime->Cancel(cancel.set_serial, cancel.ticket,
                             std::move(cancel.why));
    }
  }

  std::mutex mutex_;
  std::unordered_map<tf::CancellationManager*, Watch> watches_;
};

StepCancellation::StepCancellation(std::shared_ptr<Runtime> runtime,
                                   int set_serial, uint64_t ticket,
                                   const CallSite& site)
    : set_serial_(set_serial),
      ticket_(ticket),
      manager_(site.cancellation),
      runtime_(std::move(runtime)),
      rendezvous_(site.rendezvous) {}

Status StepCancellation::Register() {
  if (manager_ == nullptr || StepWatches::Get().Add(this)) return Status::Ok();
  return FirstErrorOfStep(rendezvous_, ticket_);
}

void StepCancellation::Enqueued(Runtime* runtime) {
  if (state_.fetch_or(kEnqueued) & kCancelled) {
    runtime->Cancel(set_serial_, ticket_, why_);
  }
}

void StepCancellation::Cancel(const TfStatus& why) {
  StepWatches::Get().Cancel(this, AsFirstError(why));
}

void StepCancellation::Finish() { StepWatches::Get().Remove(this); }

}  // namespace hvd
