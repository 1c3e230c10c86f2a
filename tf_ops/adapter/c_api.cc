// SPDX-License-Identifier: Apache-2.0
// The C functions by which Python starts, changes and ends what runs.
#include "adapter/c_api.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "adapter/c_guards.h"
#include "adapter/eager_words.h"
#include "adapter/global_runtime.h"
#include "core/stack_requests.h"

namespace {

using hvd::Catch;
using hvd::Guarded;
using hvd::LastError;
using hvd::WithRuntime;

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
