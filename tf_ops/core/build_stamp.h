// SPDX-License-Identifier: Apache-2.0
// BuildStamp: what ranks compare to know that they speak the same language.
#ifndef HVD_CORE_BUILD_STAMP_H_
#define HVD_CORE_BUILD_STAMP_H_

namespace hvd {

// Differs wherever the sources of core/ or transport/ do: messages between
// ranks and memory that they share have no version of their own.
[[nodiscard]] const char* BuildStamp();

}  // namespace hvd

#endif  // HVD_CORE_BUILD_STAMP_H_
