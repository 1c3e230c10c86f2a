// SPDX-License-Identifier: Apache-2.0
// CallSite: what the runtime has to know of the place that a call comes from.
//
// A kernel is one such place. A custom call of a compiled program can be one
// too: it has a step and a way to be cancelled, but no OpKernelContext.
#ifndef HVD_ADAPTER_CALL_SITE_H_
#define HVD_ADAPTER_CALL_SITE_H_

#include <cstdint>

#include "adapter/tf_compat.h"
#include "core/request.h"

namespace hvd {

// The pointers live until the call's End.
struct CallSite {
  // See Request::step. Steps are aborted as a whole.
  int64_t step = 0;
  // See Key::instance.
  uint64_t instance = 0;
  // See Entry::runner. May be null.
  const Runner* runner = nullptr;
  // The step has no threads: its runner runs what follows a call at once.
  bool runs_inline = false;
  // Tells that the step is aborted. Null: it cannot be.
  tensorflow::CancellationManager* cancellation = nullptr;
  // Has the first error of an aborted step. May be null.
  tensorflow::RendezvousInterface* rendezvous = nullptr;
};

// Whether the kernel is that of an eager op. TensorFlow wraps that into a
// function whose node has the name of the op's type. hvd_tf/ops gives nodes of
// graphs other names.
[[nodiscard]] bool IsEager(const tensorflow::OpKernel& kernel);

// An error while TensorFlow folds constants, when no collective may run.
[[nodiscard]] TfStatus RefuseFolding(tensorflow::OpKernelContext* ctx);

// The call site of a kernel that runs.
[[nodiscard]] CallSite CallSiteOf(tensorflow::OpKernelContext* ctx);

}  // namespace hvd

#endif  // HVD_ADAPTER_CALL_SITE_H_
