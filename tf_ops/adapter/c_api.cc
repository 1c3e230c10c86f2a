// SPDX-License-Identifier: Apache-2.0
// The C functions that hvd_tf/_internal/native.py calls. No exception of the
// standard library leaves one.
#include "adapter/c_api.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "adapter/eager_words.h"
#include "adapter/global_runtime.h"
#include "core/comm_stats.h"
#include "core/exception_status.h"
#include "core/stack_requests.h"
#include "core/types.h"

namespace {

// The error of the last failed call of this thread. Thread-local.
hvd::Status& LastError() {
  thread_local hvd::Status status;
  return status;
}

int Report(const hvd::Status& status) {
  LastError() = status;
  return static_cast<int>(status.code());
}

// Returns call(). If it throws an exception of the standard library, of memory
// and threads, that becomes the last error, and this returns `failed`.
template <typename Call>
int Catch(int failed, Call call) {
  try {
    return call();
  } catch (const std::exception& error) {
    Report(hvd::StatusOf(error));
    return failed;
  }
}

// Returns the code of the Status that `call` returns or throws, which becomes
// the last error.
template <typename Call>
int Guarded(Call call) {
  const int code = Catch(-1, [&] { return Report(call()); });
  return code >= 0 ? code : static_cast<int>(LastError().code());
}

// The same of `call(runtime)`. Not Ok where no runtime runs, and in a process
// that was forked from one with a runtime.
template <typename Call>
int WithRuntime(Call call) {
  return Guarded([&]() -> hvd::Status {
    HVD_RETURN_IF_ERROR(hvd::CheckNotForked());
    const std::shared_ptr<hvd::Runtime> runtime = hvd::GetRuntime();
    if (runtime == nullptr) return hvd::NotInitialized();
    return call(runtime.get());
  });
}

// Returns `read(runtime)`, or an HvdNoNumber. Forked processes may read, too.
template <typename Read>
int FromRuntime(Read read) {
  return Catch(HVD_FAILED, [&]() -> int {
    const std::shared_ptr<hvd::Runtime> runtime = hvd::GetRuntime();
    return runtime == nullptr ? HVD_NOT_INITIALISED : read(*runtime);
  });
}

template <typename Read>
int FromSet(int id, Read read) {
  return FromRuntime([&](const hvd::Runtime& runtime) -> int {
    const hvd::ProcessSetPtr set = runtime.process_set(id);
    return set == nullptr ? HVD_UNKNOWN_PROCESS_SET : read(*set);
  });
}

// Copies what has room in `capacity` bytes with a zero behind it. Returns the
// length of the whole text.
int CopyText(const std::string& text, char* to, int capacity) {
  if (capacity > 0) {
    const size_t length =
        std::min(text.size(), static_cast<size_t>(capacity) - 1);
    std::memcpy(to, text.data(), length);
    to[length] = '\0';
  }
  return static_cast<int>(text.size());
}

}  // namespace

const char* hvd_last_error() { return LastError().message().c_str(); }

int hvd_last_cause(int* rank, const char** tensor) {
  const hvd::Cause* cause = LastError().cause();
  if (cause == nullptr) return 0;
  *rank = cause->rank;
  *tensor = cause->tensor.c_str();
  return static_cast<int>(cause->kind);
}

int hvd_cause_of(const char* name, int* rank, const char** tensor) {
  thread_local std::optional<hvd::Cause> cause;
  cause.reset();
  Guarded([&] {
    const hvd::FailedCalls& failed = hvd::GetFailedCalls();
    cause = name == nullptr ? failed.CauseOfLast() : failed.CauseOf(name);
    return hvd::Status::Ok();
  });
  if (!cause.has_value()) return 0;
  *rank = cause->rank;
  *tensor = cause->tensor.c_str();
  return static_cast<int>(cause->kind);
}

int hvd_init(const int* comm_ranks, int comm_size, int has_mpi_comm,
             int mpi_comm, const int* set_ranks, const int* set_sizes,
             int set_count, int dynamic_sets) {
  return Guarded([&] {
    hvd::JobArgs args;
    args.dynamic_process_sets = dynamic_sets != 0;
    if (comm_size >= 0)
      args.world_ranks.assign(comm_ranks, comm_ranks + comm_size);
    if (has_mpi_comm != 0) args.mpi_comm = mpi_comm;
    for (int i = 0; i < set_count; ++i) {
      args.process_sets.emplace_back(set_ranks, set_ranks + set_sizes[i]);
      set_ranks += set_sizes[i];
    }
    return hvd::InitRuntime(args);
  });
}

void hvd_shutdown() {
  Guarded([] {
    hvd::ShutdownRuntime();
    return hvd::Status::Ok();
  });
}

int hvd_shutdown_to_restart() {
  return Guarded([] { return hvd::ShutdownToRestart(); });
}

int hvd_is_initialized() { return hvd::GetRuntime() != nullptr ? 1 : 0; }

void hvd_at_exit() {
  Guarded([] {
    hvd::ShutdownRuntime();
    hvd::EndProcess();
    return hvd::Status::Ok();
  });
}

int hvd_rank() {
  return FromRuntime([](const hvd::Runtime& r) { return r.topology().rank; });
}

int hvd_size() {
  return FromRuntime([](const hvd::Runtime& r) { return r.topology().size; });
}

int hvd_local_rank() {
  return FromRuntime(
      [](const hvd::Runtime& r) { return r.topology().local_rank; });
}

int hvd_local_size() {
  return FromRuntime(
      [](const hvd::Runtime& r) { return r.topology().local_size; });
}

int hvd_cross_rank() {
  return FromRuntime(
      [](const hvd::Runtime& r) { return r.topology().cross_rank; });
}

int hvd_cross_size() {
  return FromRuntime(
      [](const hvd::Runtime& r) { return r.topology().cross_size; });
}

int hvd_is_homogeneous() {
  return FromRuntime([](const hvd::Runtime& r) {
    return r.topology().is_homogeneous ? 1 : 0;
  });
}

int hvd_mpi_threads_supported() {
  return FromRuntime(
      [](const hvd::Runtime&) { return hvd::MpiThreadsSupported() ? 1 : 0; });
}

int hvd_process_set_ids(int* ids, int capacity) {
  return FromRuntime([&](const hvd::Runtime& runtime) {
    const auto sets = runtime.process_sets();
    int count = 0;
    for (const auto& [id, set] : *sets) {
      if (count < capacity) ids[count] = id;
      ++count;
    }
    return count;
  });
}

int hvd_has_dynamic_process_sets() {
  return FromRuntime([](const hvd::Runtime& r) {
    return r.options().dynamic_process_sets ? 1 : 0;
  });
}

int hvd_add_process_set(const int* ranks, int count, const char* error,
                        int* id) {
  return WithRuntime([&](hvd::Runtime* runtime) {
    hvd::Status own;
    if (error != nullptr) own = hvd::InvalidArgument(error);
    const hvd::Result<int> added =
        runtime->AddProcessSet({ranks, ranks + count}, std::move(own));
    if (added.ok()) *id = added.value();
    return added.status();
  });
}

int hvd_remove_process_set(int id) {
  return WithRuntime(
      [&](hvd::Runtime* runtime) { return runtime->RemoveProcessSet(id); });
}

int hvd_process_set_size(int id) {
  return FromSet(id, [](const hvd::ProcessSet& set) {
    return static_cast<int>(set.ranks.size());
  });
}

int hvd_process_set_rank(int id) {
  return FromSet(id, [](const hvd::ProcessSet& set) {
    return set.rank >= 0 ? set.rank : int{HVD_NOT_A_MEMBER};
  });
}

int hvd_process_set_serial(int id) {
  return FromSet(id, [](const hvd::ProcessSet& set) { return set.serial; });
}

int hvd_process_set_ranks(int id, int* ranks, int capacity) {
  return FromSet(id, [&](const hvd::ProcessSet& set) {
    const int size = static_cast<int>(set.ranks.size());
    std::copy_n(set.ranks.begin(), std::max(0, std::min(size, capacity)),
                ranks);
    return size;
  });
}

int hvd_mpi_built() { return hvd::MpiBuilt() ? 1 : 0; }
int hvd_cuda_built() { return hvd::CudaBuilt() ? 1 : 0; }
int hvd_has_gpu_lane() {
  return FromRuntime(
      [](const hvd::Runtime& r) { return r.options().gpu_lane ? 1 : 0; });
}

int hvd_reduce_op(const char* name) {
  for (int op = 0; op < hvd::kReduceOpCount; ++op) {
    const char* const known = hvd::Name(static_cast<hvd::ReduceOp>(op));
    if (std::strcmp(known, name) == 0) return op;
  }
  return -1;
}

int64_t hvd_put_eager_words(const char* name, int name_bytes,
                            const char* prescale, const char* postscale) {
  int64_t number = -1;
  Guarded([&] {
    number = hvd::GetEagerWords().Put(
        {std::string(name, static_cast<size_t>(name_bytes)), prescale,
         postscale});
    return hvd::Status::Ok();
  });
  return number;
}

void hvd_drop_eager_words(int64_t number) { hvd::GetEagerWords().Drop(number); }

void hvd_end_scope(int process_set_id, const char* name_prefix,
                   const char* text) {
  WithRuntime([&](hvd::Runtime* runtime) {
    runtime->EndScope(process_set_id, name_prefix, text);
    return hvd::Status::Ok();
  });
}

void hvd_announce_failure(const char* first_line) {
  WithRuntime([&](hvd::Runtime* runtime) {
    runtime->AnnounceFailure(first_line);
    return hvd::Status::Ok();
  });
}

int hvd_first_peer_end(int* kind, char* text, int capacity) {
  return FromRuntime([&](const hvd::Runtime& runtime) {
    const std::optional<hvd::PeerEnd> end = runtime.first_peer_end();
    if (!end.has_value()) return -1;
    *kind = static_cast<int>(hvd::KindOf(*end));
    CopyText(end->text, text, capacity);
    return end->rank;
  });
}

void hvd_forget_runs() {
  Guarded([] {
    hvd::ForgetRuns();
    return hvd::Status::Ok();
  });
}

int hvd_launched_size() {
  return Catch(0, [] { return hvd::LaunchedSize(); });
}

void hvd_abort(int exit_code) {
  Guarded([&] {
    hvd::AbortJob(exit_code);
    return hvd::Status::Ok();
  });
}

int hvd_start_timeline(const char* file_path, int mark_cycles) {
  return WithRuntime([&](hvd::Runtime* runtime) {
    return runtime->StartTimeline(file_path, mark_cycles != 0);
  });
}

int hvd_stop_timeline() {
  return WithRuntime([](hvd::Runtime* runtime) {
    runtime->StopTimeline();
    return hvd::Status::Ok();
  });
}

int hvd_comm_stats(char* text, int capacity) {
  return FromRuntime([&](const hvd::Runtime& runtime) {
    return CopyText(hvd::ToJson(runtime.counters()), text, capacity);
  });
}

int hvd_wait_for_stack_request() {
  return Catch(0, [] {
    std::shared_ptr<hvd::StackRequests> requests;
    // The wait keeps no reference to the runtime, which must be free to end
    // meanwhile.
    if (const auto runtime = hvd::GetRuntime()) {
      requests = runtime->stack_requests();
    }
    return requests != nullptr && requests->Wait() ? 1 : 0;
  });
}

void hvd_stacks_written() {
  WithRuntime([](hvd::Runtime* runtime) {
    runtime->stack_requests()->Written();
    return hvd::Status::Ok();
  });
}

int hvd_unused_signal() { return hvd::StackRequests::UnusedSignal(); }

void hvd_set_stack_signal(int number) {
  WithRuntime([&](hvd::Runtime* runtime) {
    runtime->stack_requests()->SetSignal(number);
    return hvd::Status::Ok();
  });
}
