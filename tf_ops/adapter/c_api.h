// SPDX-License-Identifier: Apache-2.0
// The C functions that hvd_tf/native.py calls through ctypes.
//
// Functions that can fail return a StatusCode (0: Ok) and leave the message in
// hvd_last_error() of the calling thread. All may be called from any thread.
#ifndef HVD_ADAPTER_C_API_H_
#define HVD_ADAPTER_C_API_H_

#include <stdint.h>

#define HVD_EXPORT extern "C" __attribute__((visibility("default")))

HVD_EXPORT const char* hvd_last_error();
// The CauseKind behind that error, 0 when none is known. *rank: of the job, -1:
// none in particular; *tensor: the name that it became known by, or empty;
// lives as long as the error's text.
HVD_EXPORT int hvd_last_cause(int* rank, const char** tensor);

// The CauseKind behind the failure of the last collective of that name in this
// process; null: of the last of all. 0: it did not fail, or none is known.
HVD_EXPORT int hvd_cause_of(const char* name, int* rank);

// Initialises MPI if nobody did and starts the runtime. Does nothing when it
// is running.
// comm_ranks, comm_size: world ranks that take part, or comm_size -1 for all.
// mpi_comm: a Fortran handle (mpi4py's Comm.py2f()), used when has_mpi_comm.
// set_ranks, set_sizes, set_count: process sets, one after another.
HVD_EXPORT int hvd_init(const int* comm_ranks, int comm_size, int has_mpi_comm,
                        int mpi_comm, const int* set_ranks,
                        const int* set_sizes, int set_count);
HVD_EXPORT void hvd_shutdown();
HVD_EXPORT int hvd_is_initialized();
// Shuts down and, if hvd_init was what initialised MPI, finalises it; ends the
// job instead where a rank was given up, for which MPI would wait. Called once,
// at the end of the process.
HVD_EXPORT void hvd_at_exit();

// -1 when not initialised.
HVD_EXPORT int hvd_rank();
HVD_EXPORT int hvd_size();
HVD_EXPORT int hvd_local_rank();
HVD_EXPORT int hvd_local_size();
HVD_EXPORT int hvd_cross_rank();
HVD_EXPORT int hvd_cross_size();
HVD_EXPORT int hvd_is_homogeneous();
HVD_EXPORT int hvd_mpi_threads_supported();

// Process sets: -1 when not initialised, -2 for an unknown id; rank: -3 when
// this rank is not a member.
HVD_EXPORT int hvd_process_set_count();
HVD_EXPORT int hvd_process_set_size(int id);
HVD_EXPORT int hvd_process_set_rank(int id);
// Writes min(size, capacity) ranks of the job, ascending; returns the size.
HVD_EXPORT int hvd_process_set_ranks(int id, int* ranks, int capacity);

// Build facts, callable before hvd_init.
HVD_EXPORT int hvd_mpi_built();
HVD_EXPORT int hvd_nccl_built();  // NCCL's version code or 0
HVD_EXPORT int hvd_cuda_built();
// The numeric value of a ReduceOp ("Average", "Sum", "Min", "Max", "Product"),
// -1 for an unknown name.
HVD_EXPORT int hvd_reduce_op(const char* name);

// Ends; see core/runtime.h. The texts are copied. An empty text takes an
// earlier hvd_end_scope of that prefix back.
HVD_EXPORT void hvd_end_scope(int process_set_id, const char* name_prefix,
                              const char* text);
HVD_EXPORT void hvd_announce_failure(const char* first_line);
// -1: no peer has ended. Else its rank; *failed says whether by failure, 2: in
// the words of others who have given it up. text (capacity bytes,
// zero-terminated) gets the words.
HVD_EXPORT int hvd_first_peer_end(int* failed, char* text, int capacity);
HVD_EXPORT void hvd_abort(int exit_code);

// Python's stacks; see core/stack_requests.h. Waits until they are to be
// written (1; hvd_stacks_written must follow) or the runtime has ended (0).
HVD_EXPORT int hvd_wait_for_stack_request();
HVD_EXPORT void hvd_stacks_written();
// A signal that the process does nothing about, or 0; and: it writes them now.
HVD_EXPORT int hvd_unused_signal();
HVD_EXPORT void hvd_set_stack_signal(int number);

#endif  // HVD_ADAPTER_C_API_H_
