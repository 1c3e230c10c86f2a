// SPDX-License-Identifier: Apache-2.0
// SharedBytes: the bytes of a message, shared by the sends to all its ranks.
#ifndef HVD_CORE_SHARED_BYTES_H_
#define HVD_CORE_SHARED_BYTES_H_

#include <memory>
#include <string>
#include <utility>

namespace hvd {

// A leader sends all members the same message. With 1000 ranks, a copy for each
// would take 1000 times the memory.
using SharedBytes = std::shared_ptr<const std::string>;

inline SharedBytes Share(std::string bytes) {
  return std::make_shared<const std::string>(std::move(bytes));
}

}  // namespace hvd

#endif  // HVD_CORE_SHARED_BYTES_H_
