// SPDX-License-Identifier: Apache-2.0
// Tells a lack of memory from a lack of threads.
#include "core/exception_status.h"

#include <new>
#include <system_error>

namespace hvd {

Status StatusOf(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return ResourceExhausted("there is no memory left.");
  }
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  // What std::thread says where the process may not have another one.
  if (system != nullptr &&
      system->code() == std::errc::resource_unavailable_try_again) {
    return Internal(
        "no thread could be started (" + system->code().message() +
        "); allow more of them (ulimit -u, or docker's --pids-limit).");
  }
  return Internal(error.what());
}

}  // namespace hvd
