// SPDX-License-Identifier: Apache-2.0
// The process's one Runtime: the only global of the library.
//
// Owner: this file, between Init and Shutdown; a kernel that is under way holds
// a reference of its own. Any thread.
#ifndef HVD_ADAPTER_GLOBAL_RUNTIME_H_
#define HVD_ADAPTER_GLOBAL_RUNTIME_H_

#include <memory>
#include <vector>

#include "adapter/failed_calls.h"
#include "core/runtime.h"
#include "core/status.h"
#include "transport/backends.h"

namespace hvd {

// Opens the backend and starts the runtime; does nothing when one is running.
// Collective over the job's ranks. Works again after ShutdownRuntime.
[[nodiscard]] Status InitRuntime(const JobArgs& args);

// Not Ok in a process that was forked from one that had called InitRuntime: it
// has no background thread, and MPI must not be used there. Asking for the
// runtime's facts is all that it may do; the functions below do nothing in it.
[[nodiscard]] Status CheckNotForked();

// Stops the runtime: what is pending fails, the background thread has ended
// when this returns. Does nothing when none is running.
void ShutdownRuntime();

// At the end of the process, after ShutdownRuntime: lets go of what backends
// share. Ends the job instead where a runtime of this process had given a rank
// up, for which that would wait.
void EndProcess();

// Null when none is running.
[[nodiscard]] std::shared_ptr<Runtime> GetRuntime();

// Of all runtimes of this process.
[[nodiscard]] FailedCalls& GetFailedCalls();

}  // namespace hvd

#endif  // HVD_ADAPTER_GLOBAL_RUNTIME_H_
