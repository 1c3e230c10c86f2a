// SPDX-License-Identifier: Apache-2.0
// What this process has of MPI, whoever has initialised it.
#include "transport/mpi/mpi_process.h"

#include <mpi.h>

#include <cstdlib>

namespace hvd {

bool MpiIsFinalised() {
  int finalised = 0;
  MPI_Finalized(&finalised);
  return finalised != 0;
}

bool MpiProvidesThreads() {
  int initialised = 0, provided = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialised);
  if (!initialised || MpiIsFinalised()) return false;
  MPI_Query_thread(&provided);
  return provided >= MPI_THREAD_MULTIPLE;
}

int MpiWorldSize() {
  int initialised = 0, size = 0;
  MPI_Initialized(&initialised);
  if (initialised && !MpiIsFinalised()) MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

void AbortMpi(int exit_code) {
  if (MpiWorldSize() == 0) return;
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  // MPI_Abort returns if the launcher is gone. This ends the process then.
  std::_Exit(exit_code);
}

}  // namespace hvd
