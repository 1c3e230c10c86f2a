// SPDX-License-Identifier: Apache-2.0
// Makes a Status of an MPI error code.
#ifndef HVD_TRANSPORT_MPI_MPI_STATUS_H_
#define HVD_TRANSPORT_MPI_MPI_STATUS_H_

#include <mpi.h>

#include <string>

#include "core/status.h"

namespace hvd {

// Ok for MPI_SUCCESS. `call` is the name of the MPI function.
inline Status MpiStatus(int code, const char* call) {
  if (code == MPI_SUCCESS) return Status::Ok();
  char text[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 13;
  return Internal(std::string(call) + " failed: " + std::string(text, length));
}

}  // namespace hvd

#define HVD_MPI_TRY(function, ...) \
  HVD_RETURN_IF_ERROR(::hvd::MpiStatus(function(__VA_ARGS__), #function))

#endif  // HVD_TRANSPORT_MPI_MPI_STATUS_H_
