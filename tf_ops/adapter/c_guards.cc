// SPDX-License-Identifier: Apache-2.0
// The last error of each thread.
#include "adapter/c_guards.h"

namespace hvd {

Status& LastError() {
  thread_local Status status;
  return status;
}

int Report(const Status& status) {
  LastError() = status;
  return static_cast<int>(status.code());
}

}  // namespace hvd
