// SPDX-License-Identifier: Apache-2.0
// The one Runtime of the process.
#include "adapter/global_runtime.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "adapter/gpu_kernels.h"
#include "core/log.h"
#include "core/options.h"
#include "core/start_watch.h"

namespace hvd {
namespace {

struct Global {
  // Init and Shutdown hold it all the time, and take long. A kernel never holds
  // it.
  std::mutex lifecycle_mutex;
  std::mutex runtime_mutex;
  std::shared_ptr<Runtime> runtime;  // guarded by runtime_mutex
  // The last runtime that was shut down after a rank had been given up. Guarded
  // by lifecycle_mutex.
  std::shared_ptr<Runtime> lost;
  // A peer that has restarted since this process had its last runtime. It waits
  // for this rank. -1: none. Guarded by lifecycle_mutex.
  int restarting_peer = -1;
  // Whether there has been a runtime, or ForgetRuns since. Guarded by
  // lifecycle_mutex.
  bool has_run = false;
  // An exception has ended InitRuntime, and the peers may wait there. Guarded
  // by lifecycle_mutex.
  bool start_is_broken = false;
  FailedCalls failed_calls;
  // Set in a forked child, to the parent's process id. The child inherits all
  // else.
  std::atomic<pid_t> forked_from{0};
  std::once_flag forks_are_watched;
};

// Never destroyed, because TensorFlow's threads may still run kernels while the
// static objects of the process are destroyed.
Global& TheGlobal() {
  static Global* const global = std::make_unique<Global>().release();
  return *global;
}

// Other threads may be in GetRuntime, or ask it for a fact. In a child that is
// forked meanwhile a mutex that they hold would be locked for ever.
void BeforeFork() {
  Global& global = TheGlobal();
  global.runtime_mutex.lock();
  if (global.runtime != nullptr) global.runtime->BeforeFork();
}
void AfterForkInParent() {
  Global& global = TheGlobal();
  if (global.runtime != nullptr) global.runtime->AfterFork();
  global.runtime_mutex.unlock();
}
void AfterForkInChild() {
  // 0 where the parent is in another PID namespace.
  TheGlobal().forked_from = std::max(getppid(), pid_t{1});
  AfterForkInParent();
}

// Fails only without memory. Then forks are not noticed.
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

// Returns how the first peer has ended, if one has. The caller holds
// lifecycle_mutex.
std::optional<PeerEnd> StopRuntime(bool restarts) {
  Global& global = TheGlobal();
  std::shared_ptr<Runtime> runtime = GetRuntime();
  if (runtime == nullptr) return std::nullopt;
  // First there must be no new users. Then this thread stops the runtime. A
  // callback on the background thread must not drop the last reference, because
  // that joins the background thread.
  SetRuntime(nullptr);
  runtime->Stop(restarts);
  global.restarting_peer = runtime->restarting_peer();
  std::optional<PeerEnd> end = runtime->first_peer_end();
  if (end.has_value() && end->gave_up) global.lost = std::move(runtime);
  return end;
}

// Ends this process and the job, from any thread.
void GiveUpStart() {
  AbortBackends(EXIT_FAILURE);
  std::_Exit(EXIT_FAILURE);  // MPI has not begun, or the launcher is gone
}

// What a rank says of its GPUs: this, or why it has no lane for them.
constexpr char kHasLane[] = "";

// All ranks call it. GPUs have a lane where all ranks can have one. Else
// TensorFlow copies what it has on a GPU.
Status DecideGpuLane(Backend* backend, Options* options) {
  std::string mine = "HVD_GPU_LANE is 0";
  if (options->gpu_lane) mine = PrepareDeviceLanes().message();
  const auto all = backend->Exchange(mine);
  if (!all.ok()) return all.status();
  const std::vector<std::string>& words = all.value();
  const auto without =
      std::find_if(words.begin(), words.end(),
                   [](const std::string& why) { return why != kHasLane; });
  options->gpu_lane = without == words.end();
  if (options->gpu_lane) {
    RegisterGpuKernels();
  } else if (backend->topology().rank == 0 &&
             std::find(words.begin(), words.end(), kHasLane) != words.end()) {
    Log(LogLevel::kWarning,
        "TensorFlow copies tensors of GPUs to the host, on all ranks: rank " +
            std::to_string(without - words.begin()) + " says: " + *without);
  }
  return Status::Ok();
}

// All ranks call it. What it returns is the same on all of them, but for
// exceptions.
Status StartTogether(const JobArgs& args, Options options) {
  Result<std::unique_ptr<Backend>> backend = OpenBackend(args, options);
  if (!backend.ok()) return backend.status();
  ConfigureLog(options.log_level, backend.value()->topology().rank);
  HVD_RETURN_IF_ERROR(DecideGpuLane(backend.value().get(), &options));
  std::unique_ptr<DeviceLanes> device_lanes =
      OpenDeviceLanes(backend.value()->doorbell());
  auto runtime = std::make_shared<Runtime>(std::move(backend.value()), options,
                                           std::move(device_lanes));
  HVD_RETURN_IF_ERROR(runtime->Start(args.process_sets));
  SetRuntime(std::move(runtime));
  return Status::Ok();
}

}  // namespace

std::shared_ptr<Runtime> GetRuntime() {
  Global& global = TheGlobal();
  std::lock_guard<std::mutex> lock(global.runtime_mutex);
  return global.runtime;
}

Status NotInitialized() {
  return FailedPrecondition(
      "hvd_tf has not been initialized; use hvd.init() first.");
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
  if (args.dynamic_process_sets) options.value().dynamic_process_sets = true;
  WatchForks();
  Global& global = TheGlobal();
  ConfigureLog(options.value().log_level, -1);  // the rank is not known yet
  // The first start may be as slow as a peer's imports.
  const double limit_s = global.has_run ? options.value().stall_shutdown_s : 0;
  const StartWatch watch(options.value().stall_warning_s, limit_s, GiveUpStart);
  global.start_is_broken = true;
  const Status started = StartTogether(args, options.value());
  global.start_is_broken = false;
  HVD_RETURN_IF_ERROR(started);
  global.restarting_peer = -1;
  global.has_run = true;
  return Status::Ok();
}

void ShutdownRuntime() {
  if (!CheckNotForked().ok()) return;
  std::lock_guard<std::mutex> lifecycle(TheGlobal().lifecycle_mutex);
  (void)StopRuntime(false);
}

Status ShutdownToRestart() {
  HVD_RETURN_IF_ERROR(CheckNotForked());
  std::lock_guard<std::mutex> lifecycle(TheGlobal().lifecycle_mutex);
  const std::optional<PeerEnd> end = StopRuntime(true);
  if (!end.has_value() || end->restarts) return Status::Ok();
  return PeerLost("hvd cannot start again, because rank " +
                      std::to_string(end->rank) +
                      (end->failed ? " failed: " : " has left: ") + end->text,
                  CauseOf(*end));
}

void ForgetRuns() {
  std::lock_guard<std::mutex> lifecycle(TheGlobal().lifecycle_mutex);
  TheGlobal().has_run = false;
}

void EndProcess() {
  if (!CheckNotForked().ok()) return;
  std::lock_guard<std::mutex> lifecycle(TheGlobal().lifecycle_mutex);
  const Global& global = TheGlobal();
  if (global.lost != nullptr) global.lost->Abort(EXIT_FAILURE);
  if (global.restarting_peer >= 0) {
    Log(LogLevel::kError,
        "this rank's program is over, while rank " +
            std::to_string(global.restarting_peer) +
            " goes back to its last commit (hvd.elastic.run) and waits for it; "
            "have all ranks take the same number of steps.");
    AbortBackends(EXIT_FAILURE);
  }
  if (global.start_is_broken) {
    Log(LogLevel::kError,
        "this rank's program is over, while other ranks may wait for it in "
        "hvd.init(), which failed here; the job is ended.");
    AbortBackends(EXIT_FAILURE);
  }
  FinalizeBackends();
}

void AbortJob(int exit_code) {
  if (!CheckNotForked().ok()) return;
  if (const auto runtime = GetRuntime()) runtime->Abort(exit_code);
  AbortBackends(exit_code);
}

}  // namespace hvd
