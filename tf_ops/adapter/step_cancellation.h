// SPDX-License-Identifier: Apache-2.0
// StepCancellation: withdraws one entry when its TensorFlow step is aborted.
#ifndef HVD_ADAPTER_STEP_CANCELLATION_H_
#define HVD_ADAPTER_STEP_CANCELLATION_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "adapter/call_site.h"
#include "adapter/tf_compat.h"
#include "core/runtime.h"
#include "core/status.h"

namespace hvd {

// Connects a call that waits with the CancellationManager of its step.
//
// It is a part of the call. The waiting calls of a step share one
// registration with the manager. With a registration for each, a step of
// hundreds of small tensors would spend a tenth of its time on them. Any
// thread. The cancellation may come before the entry has been enqueued, and
// while its done runs.
class StepCancellation {
 public:
  // What `site` points to is used until Finish. Finish must come before the
  // step may end.
  StepCancellation(std::shared_ptr<Runtime> runtime, int set_serial,
                   uint64_t ticket, const CallSite& site);
  StepCancellation(const StepCancellation&) = delete;
  StepCancellation& operator=(const StepCancellation&) = delete;

  // Not Ok: this error has aborted the step already. The entry must not be
  // enqueued.
  [[nodiscard]] Status Register();

  // The entry has been handed to the runtime. May come after Finish.
  void Enqueued(Runtime* runtime);

  // Withdraws the entry before its step is aborted, which is about to be: with
  // this error of another call. Does nothing after Finish.
  void Cancel(const TfStatus& why);

  // The entry is done, so the step's cancellation no longer concerns it. Does
  // not wait for a callback that is running in another thread.
  void Finish();

 private:
  friend class StepWatches;

  // What has happened, as bits. Cancel is due once both have.
  static constexpr int kEnqueued = 1;
  static constexpr int kCancelled = 2;

  const int set_serial_;
  const uint64_t ticket_;
  tensorflow::CancellationManager* const manager_;
  std::atomic<int> state_{0};
  Status why_;  // set before kCancelled

  // Guarded by the watches' mutex. Null once finished.
  std::shared_ptr<Runtime> runtime_;
  tensorflow::RendezvousInterface* rendezvous_;
  // The neighbours among the waiting calls of the step.
  StepCancellation* previous_ = nullptr;
  StepCancellation* next_ = nullptr;
};

}  // namespace hvd

#endif  // HVD_ADAPTER_STEP_CANCELLATION_H_
