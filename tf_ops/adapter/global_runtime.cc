// SPDX-License-Identifier: Apache-2.0
// The process's one Runtime.
#include "adapter/global_runtime.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "core/log.h"
#include "core/options.h"

namespace hvd {
namespace {

struct Global {
  // Held through Init and Shutdown, which take long; never by a kernel.
  std::mutex lifecycle_mutex;
  std::mutex runtime_mutex;
  std::shared_ptr<Runtime> runtime;  // guarded by runtime_mutex
  // The last that was shut down after a rank had been given up; guarded by
  // lifecycle_mutex.
  std::shared_ptr<Runtime> lost;
  FailedCalls failed_calls;
  // Set in a forked child, which inherits all else: the parent's process id.
  std::atomic<pid_t> forked_from{0};
  std::once_flag forks_are_watched;
};

// Never destroyed: TensorFlow's threads may still run kernels while the
// process's static objects are taken down.
Global& TheGlobal() {
  static Global* const global = std::make_unique<Global>().release();
  return *global;
}

// Kernels of other threads may be in GetRuntime: a child forked meanwhile would
// find the mutex locked for ever.
void BeforeFork() { TheGlobal().runtime_mutex.lock(); }
void AfterForkInParent() { TheGlobal().runtime_mutex.unlock(); }
void AfterForkInChild() {
  TheGlobal().forked_from = getppid();
  TheGlobal().runtime_mutex.unlock();
}

// Without memory for it forks go unnoticed, as ever.
void WatchForks() {
  std::call_once(TheGlobal().forks_are_watched, [] {
    pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
  });
}

void SetRuntime(std::shared_ptr<Runtime> runtime) {
  Global& global = TheGlobal();
  std::lock_guard<std::mutex> lock(global.runtime_mutex);
  global.runtime.swap(runtime);
}

}  // namespace

std::shared_ptr<Runtime> GetRuntime() {
  Global& global = TheGlobal();
  std::lock_guard<std::mutex> lock(global.runtime_mutex);
  return global.runtime;
}

FailedCalls& GetFailedCalls() { return TheGlobal().failed_calls; }

Status CheckNotForked() {
  const pid_t parent = TheGlobal().forked_from;
  if (parent == 0) return Status::Ok();
  return FailedPrecondition(
      "this process was forked from one (pid " + std::to_string(parent) +
      ") that had called hvd.init(), and has no part in the job; fork before "
      "hvd.init(), or start processes that do not share its memory, such as "
      "subprocess or multiprocessing's \"spawn\" does");
}

Status InitRuntime(const JobArgs& args) {
  HVD_RETURN_IF_ERROR(CheckNotForked());
  std::lock_guard<std::mutex> lifecycle(TheGlobal().lifecycle_mutex);
  if (GetRuntime() != nullptr) return Status::Ok();
  Result<Options> options =
      Options::Parse([](const char* name) { return std::getenv(name); });
  if (!options.ok()) return options.status();
  WatchForks();
  const auto level = static_cast<LogLevel>(options.value().log_level);
  ConfigureLog(level, -1);  // the rank is the backend's to tell
  Result<std::unique_ptr<Backend>> backend = OpenBackend(args, options.value());
  if (!backend.ok()) return backend.status();
  ConfigureLog(level, backend.value()->topology().rank);
  auto runtime =
      std::make_shared<Runtime>(std::move(backend.value()), options.value());
  HVD_RETURN_IF_ERROR(runtime->Start(args.process_sets));
  SetRuntime(std::move(runtime));
  return Status::Ok();
}

void ShutdownRuntime() {
  if (!CheckNotForked().ok()) return;
  std::lock_guard<std::mutex> lifecycle(TheGlobal().lifecycle_mutex);
  std::shared_ptr<Runtime> runtime = GetRuntime();
  if (runtime == nullptr) return;
  // No new user first; then stop, in this thread: the last reference must not
  // be dropped by a callback on the background thread that it would join.
  SetRuntime(nullptr);
  runtime->Stop();
  const std::optional<PeerEnd> end = runtime->first_peer_end();
  if (end.has_value() && end->gave_up) TheGlobal().lost = std::move(runtime);
}

void EndProcess() {
  if (!CheckNotForked().ok()) return;
  std::lock_guard<std::mutex> lifecycle(TheGlobal().lifecycle_mutex);
  if (TheGlobal().lost != nullptr) TheGlobal().lost->Abort(EXIT_FAILURE);
  FinalizeBackends();
}

}  // namespace hvd
