// SPDX-License-Identifier: Apache-2.0
// JobArgs: what a program says of its job when it starts it.
#ifndef HVD_TRANSPORT_JOB_ARGS_H_
#define HVD_TRANSPORT_JOB_ARGS_H_

#include <optional>
#include <vector>

namespace hvd {

// Which processes make up the job, and which sets of them work together.
struct JobArgs {
  // World ranks that take part; empty: all.
  std::vector<int> world_ranks;
  // A Fortran handle of an MPI communicator. If set, it is used instead.
  std::optional<int> mpi_comm;
  // Ranks of the job. The sets are the same on every rank.
  std::vector<std::vector<int>> process_sets;
  // More of them may come later, and all may go.
  bool dynamic_process_sets = false;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_JOB_ARGS_H_
