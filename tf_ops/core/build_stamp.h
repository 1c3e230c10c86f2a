// SPDX-License-Identifier: Apache-2.0
// BuildStamp: ranks compare it to know that they have the same sources.
#ifndef HVD_CORE_BUILD_STAMP_H_
#define HVD_CORE_BUILD_STAMP_H_

namespace hvd {

// Differs when the sources of core/, cpu/ or transport/ differ. The messages
// between ranks, and the memory that they share, have no version of their own.
[[nodiscard]] const char* BuildStamp();

}  // namespace hvd

#endif  // HVD_CORE_BUILD_STAMP_H_
