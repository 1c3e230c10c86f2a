// SPDX-License-Identifier: Apache-2.0
// StepCancellation: withdraws one entry when its TensorFlow step is aborted.
#ifndef HVD_ADAPTER_STEP_CANCELLATION_H_
#define HVD_ADAPTER_STEP_CANCELLATION_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "adapter/tf_compat.h"
#include "core/runtime.h"
#include "core/status.h"

namespace hvd {

// The link between a kernel that waits and the step's CancellationManager.
//
// A part of the kernel's call. The calls of a step that wait at the same time
// share one registration with the manager: a step of hundreds of small tensors
// spends a tenth of its time there otherwise. Any thread; the cancellation may
// come before the entry has been enqueued, and while its done runs.
class StepCancellation {
 public:
  // `ctx` is used until Finish, which must come before the kernel's done.
  StepCancellation(std::shared_ptr<Runtime> runtime, int process_set_id,
                   uint64_t ticket, tensorflow::OpKernelContext* ctx);
  StepCancellation(const StepCancellation&) = delete;
  StepCancellation& operator=(const StepCancellation&) = delete;

  // Not Ok: the step is already aborted, by this error, and the entry must not
  // be enqueued.
  [[nodiscard]] Status Register();

  // The entry has been handed to the runtime. May come after Finish.
  void Enqueued(Runtime* runtime);

  // The entry is done: cancellation no longer concerns it. Does not wait for a
  // callback that is running in another thread.
  void Finish();

 private:
  friend class StepWatches;

  // What has happened; Cancel is due once both have.
  static constexpr int kEnqueued = 1;
  static constexpr int kCancelled = 2;

  const int process_set_id_;
  const uint64_t ticket_;
  tensorflow::CancellationManager* const manager_;
  std::atomic<int> state_{0};
  Status why_;  // set before kCancelled

  // Guarded by the watches' mutex; null once finished.
  std::shared_ptr<Runtime> runtime_;
  tensorflow::OpKernelContext* ctx_;
  // The neighbours among the waiting calls of the step.
  StepCancellation* previous_ = nullptr;
  StepCancellation* next_ = nullptr;
};

}  // namespace hvd

#endif  // HVD_ADAPTER_STEP_CANCELLATION_H_
