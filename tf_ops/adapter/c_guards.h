// SPDX-License-Identifier: Apache-2.0
// What C functions have in common: no exception of the standard library leaves
// one, and the error is kept for the thread that called.
#ifndef HVD_ADAPTER_C_GUARDS_H_
#define HVD_ADAPTER_C_GUARDS_H_

#include <exception>
#include <memory>

#include "adapter/global_runtime.h"
#include "core/exception_status.h"
#include "core/runtime.h"
#include "core/status.h"

namespace hvd {

// The error of the last failed call of this thread. Thread-local.
Status& LastError();

// Makes it the last error. Returns its code.
int Report(const Status& status);

// Returns call(). If it throws an exception of the standard library, of memory
// and threads, that becomes the last error, and this returns `failed`.
template <typename Call>
int Catch(int failed, Call call) {
  try {
    return call();
  } catch (const std::exception& error) {
    Report(StatusOf(error));
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
  return Guarded([&]() -> Status {
    HVD_RETURN_IF_ERROR(CheckNotForked());
    const std::shared_ptr<Runtime> runtime = GetRuntime();
    if (runtime == nullptr) return NotInitialized();
    return call(runtime.get());
  });
}

}  // namespace hvd

#endif  // HVD_ADAPTER_C_GUARDS_H_
