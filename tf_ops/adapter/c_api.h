// SPDX-License-Identifier: Apache-2.0
// The C functions that hvd_tf/_internal/native.py calls through ctypes.
//
// A function that can fail returns a StatusCode (0: Ok). hvd_last_error() then
// has the message, for the calling thread. Any thread may call all of them.
#ifndef HVD_ADAPTER_C_API_H_
#define HVD_ADAPTER_C_API_H_

#include <stdint.h>

#define HVD_EXPORT extern "C" __attribute__((visibility("default")))

// What a function returns that has no number to return.
enum HvdNoNumber {
  HVD_NOT_INITIALISED = -1,
  HVD_UNKNOWN_PROCESS_SET = -2,
  HVD_NOT_A_MEMBER = -3,
  // Such as without memory. hvd_last_error() has the message.
  HVD_FAILED = -4,
};

HVD_EXPORT const char* hvd_last_error();
// The CauseKind of that error. 0: not known. *rank is a rank of the job, or -1
// for no single rank. *tensor is the failed tensor's name, or empty. It lives
// as long as the error's text.
HVD_EXPORT int hvd_last_cause(int* rank, const char** tensor);

// The CauseKind of the last collective of that name in this process, if that
// failed. A null name means the last collective of all. 0: it did not fail, or
// its cause is not known. *rank and *tensor are as above. The name lives until
// this thread asks again.
HVD_EXPORT int hvd_cause_of(const char* name, int* rank, const char** tensor);

// Initialises MPI if nobody has done so, and starts the runtime. Does nothing
// when the runtime is running.
// - comm_ranks, comm_size: the world ranks that take part. comm_size -1: all.
// - mpi_comm: a Fortran handle (mpi4py's Comm.py2f()), used if has_mpi_comm.
// - set_ranks, set_sizes, set_count: the process sets, one after another.
// - dynamic_sets: not 0: as with HVD_DYNAMIC_PROCESS_SETS=1.
HVD_EXPORT int hvd_init(const int* comm_ranks, int comm_size, int has_mpi_comm,
                        int mpi_comm, const int* set_ranks,
                        const int* set_sizes, int set_count, int dynamic_sets);
HVD_EXPORT void hvd_shutdown();
// The same before another hvd_init on all ranks. Not Ok: a peer has ended for
// good, and hvd_init would wait for it for ever.
HVD_EXPORT int hvd_shutdown_to_restart();
HVD_EXPORT int hvd_is_initialized();
// Shuts down. If hvd_init has initialised MPI, it finalises MPI. MPI would wait
// for a rank that was given up, or that waits in hvd_init for this one. If
// there is one, it ends the job instead. Called once, at the end of the
// process.
HVD_EXPORT void hvd_at_exit();

// They return HVD_NOT_INITIALISED or HVD_FAILED where there is no number.
HVD_EXPORT int hvd_rank();
HVD_EXPORT int hvd_size();
HVD_EXPORT int hvd_local_rank();
HVD_EXPORT int hvd_local_size();
HVD_EXPORT int hvd_cross_rank();
HVD_EXPORT int hvd_cross_size();
HVD_EXPORT int hvd_is_homogeneous();
HVD_EXPORT int hvd_mpi_threads_supported();

// Process sets. They return an HvdNoNumber where there is no number: the rank
// of a rank that is not a member is HVD_NOT_A_MEMBER. hvd_process_set_ids
// writes the lowest ids, at most `capacity`. Returns how many there are.
HVD_EXPORT int hvd_process_set_ids(int* ids, int capacity);
HVD_EXPORT int hvd_process_set_size(int id);
HVD_EXPORT int hvd_process_set_rank(int id);
// Writes min(size, capacity) ranks of the job, ascending. Returns the size.
HVD_EXPORT int hvd_process_set_ranks(int id, int* ranks, int capacity);
// The number of the set within the life of the job. No other set ever has it.
HVD_EXPORT int hvd_process_set_serial(int id);

// Whether sets may be added and removed, or an HvdNoNumber.
HVD_EXPORT int hvd_has_dynamic_process_sets();
// Collective calls of all ranks of the job; see core/runtime.h. They block.
// `error` is null, or says what is wrong with this rank's call. Then it fails
// on all ranks.
HVD_EXPORT int hvd_add_process_set(const int* ranks, int count,
                                   const char* error, int* id);
HVD_EXPORT int hvd_remove_process_set(int id);

// What this build has. They may be called before hvd_init.
HVD_EXPORT int hvd_mpi_built();
HVD_EXPORT int hvd_cuda_built();
// Whether ops have kernels for GPUs, or an HvdNoNumber.
HVD_EXPORT int hvd_has_gpu_lane();
// The numeric value of the ReduceOp of that Name, such as "Average". -1 for an
// unknown name.
HVD_EXPORT int hvd_reduce_op(const char* name);

// See adapter/eager_words.h. `name` has `name_bytes` bytes, and the scales end
// with a zero. The number is that of EagerWordsTable::Put. It is -1 too where
// there is no memory.
HVD_EXPORT int64_t hvd_put_eager_words(const char* name, int name_bytes,
                                       const char* prescale,
                                       const char* postscale);
HVD_EXPORT void hvd_drop_eager_words(int64_t number);

// How ranks and training loops end; see core/runtime.h. The texts are copied.
// An empty text takes back an earlier hvd_end_scope of that prefix.
HVD_EXPORT void hvd_end_scope(int process_set_id, const char* name_prefix,
                              const char* text);
HVD_EXPORT void hvd_announce_failure(const char* first_line);
// The rank of the first peer that has ended. Negative: none is known. *kind is
// its PeerEndKind. `text` has `capacity` bytes. It gets the peer's text, or
// that of those that gave it up, zero-terminated.
HVD_EXPORT int hvd_first_peer_end(int* kind, char* text, int capacity);
// The next hvd_init is a program's first one, in which ranks may be late for
// their imports.
HVD_EXPORT void hvd_forget_runs();
// The ranks that the launcher has started. 0: MPI does not run in this process.
HVD_EXPORT int hvd_launched_size();
// Ends the job of all these ranks, also where hvd is not initialised. Returns
// if MPI does not run, and in a forked child.
HVD_EXPORT void hvd_abort(int exit_code);

// See core/runtime.h. `file_path` is copied. Not Ok: hvd is not initialised, or
// the file cannot be written.
HVD_EXPORT int hvd_start_timeline(const char* file_path, int mark_cycles);
HVD_EXPORT int hvd_stop_timeline();
// Writes the counters of core/comm_stats.h as JSON into `text`, which has
// `capacity` bytes, zero-terminated. Returns its length, which may be more than
// was written, or an HvdNoNumber.
HVD_EXPORT int hvd_comm_stats(char* text, int capacity);

// Python's stacks; see core/stack_requests.h. Waits for a request. 1: write the
// stacks and call hvd_stacks_written. 0: the runtime has ended.
HVD_EXPORT int hvd_wait_for_stack_request();
HVD_EXPORT void hvd_stacks_written();
// hvd_unused_signal returns a signal without a handler, or 0.
// hvd_set_stack_signal says that signal `number` writes the stacks from now on.
HVD_EXPORT int hvd_unused_signal();
HVD_EXPORT void hvd_set_stack_signal(int number);

#endif  // HVD_ADAPTER_C_API_H_
