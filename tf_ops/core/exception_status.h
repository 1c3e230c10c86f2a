// SPDX-License-Identifier: Apache-2.0
// The Status of an exception of the standard library.
#ifndef HVD_CORE_EXCEPTION_STATUS_H_
#define HVD_CORE_EXCEPTION_STATUS_H_

#include <exception>

#include "core/status.h"

namespace hvd {

// Says what was missing: memory (ResourceExhausted) or a thread. Other
// exceptions are Internal, in their own words. Any thread.
Status StatusOf(const std::exception& error);

}  // namespace hvd

#endif  // HVD_CORE_EXCEPTION_STATUS_H_
