// SPDX-License-Identifier: Apache-2.0
// The one Runtime of the process.
//
// Owner: this file, between InitRuntime and ShutdownRuntime. A kernel that is
// running holds a reference of its own. Any thread.
#ifndef HVD_ADAPTER_GLOBAL_RUNTIME_H_
#define HVD_ADAPTER_GLOBAL_RUNTIME_H_

#include <memory>

#include "adapter/failed_calls.h"
#include "core/runtime.h"
#include "core/status.h"
#include "transport/backends.h"

namespace hvd {

// Opens the backend and starts the runtime. Does nothing when a runtime is
// running. All ranks of the job call it. It works again after ShutdownRuntime.
[[nodiscard]] Status InitRuntime(const JobArgs& args);

// Not Ok in a process that was forked after InitRuntime. It has no background
// thread, and must not use MPI. It may only ask for facts such as its rank. The
// functions below do nothing in it.
[[nodiscard]] Status CheckNotForked();

// Stops the runtime. What is pending fails. When this returns, the background
// thread has ended. Does nothing when no runtime is running.
void ShutdownRuntime();

// The same, before InitRuntime on all ranks: peers are told so, and those that
// run fail and can do the same. Not Ok: a peer has ended for good, so that
// InitRuntime would wait for it for ever.
[[nodiscard]] Status ShutdownToRestart();
// The next InitRuntime has no limit, as a process' first one.
void ForgetRuns();

// Finalises MPI at the end of the process, after ShutdownRuntime. MPI would
// wait for a rank that a runtime of this process has given up, or that waits in
// InitRuntime for this one. If there is one, this ends the job instead.
void EndProcess();

// Ends the whole job, also where no runtime runs. Returns if MPI does not run.
void AbortJob(int exit_code);

// Null when no runtime is running.
[[nodiscard]] std::shared_ptr<Runtime> GetRuntime();
// What is told to those who need one then.
[[nodiscard]] Status NotInitialized();

// The failed calls of all runtimes of this process.
[[nodiscard]] FailedCalls& GetFailedCalls();

}  // namespace hvd

#endif  // HVD_ADAPTER_GLOBAL_RUNTIME_H_
