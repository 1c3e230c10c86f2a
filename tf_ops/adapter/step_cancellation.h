// SPDX-License-Identifier: Apache-2.0
// StepCancellation: withdraws one entry when its TensorFlow step is aborted.
#ifndef HVD_ADAPTER_STEP_CANCELLATION_H_
#define HVD_ADAPTER_STEP_CANCELLATION_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "adapter/tf_compat.h"
#include "core/runtime.h"
#include "core/status.h"

namespace hvd {

// The link between a kernel that waits and the step's CancellationManager.
// Shared by the kernel's done closure and the manager's callback, whichever
// lives longer. Any thread; the callback may come before the entry has been
// enqueued, and while its done runs.
class StepCancellation : public std::enable_shared_from_this<StepCancellation> {
 public:
  // `ctx` is used until Finish, which must come before the kernel's done.
  StepCancellation(std::shared_ptr<Runtime> runtime, int process_set_id,
                   uint64_t ticket, tensorflow::OpKernelContext* ctx);

  // False: the step is already aborted and the entry must not be enqueued.
  [[nodiscard]] bool Register();

  // The entry has been handed to the runtime.
  void Enqueued();

  // The entry is done: cancellation no longer concerns it. Does not wait for a
  // callback that is running in another thread.
  void Finish();

  // What aborted the step: the first error, where TensorFlow tells it.
  Status Why();

 private:
  void OnCancel();

  const std::shared_ptr<Runtime> runtime_;
  const int process_set_id_;
  const uint64_t ticket_;
  tensorflow::CancellationManager* const manager_;
  tensorflow::CancellationToken token_ = 0;

  std::mutex mutex_;
  tensorflow::OpKernelContext* ctx_;  // null once finished
  bool enqueued_ = false;
  bool cancelled_ = false;
  Status why_;
};

}  // namespace hvd

#endif  // HVD_ADAPTER_STEP_CANCELLATION_H_
