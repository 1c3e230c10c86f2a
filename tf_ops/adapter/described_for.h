// SPDX-License-Identifier: Apache-2.0
// DescribedFor: the runtime and the process set that a kept request is for.
#ifndef HVD_ADAPTER_DESCRIBED_FOR_H_
#define HVD_ADAPTER_DESCRIBED_FOR_H_

#include <memory>

#include "core/runtime.h"

namespace hvd {

// Of a kernel's call. Not thread-safe.
class DescribedFor {
 public:
  DescribedFor() = default;  // for none
  DescribedFor(const std::shared_ptr<Runtime>& runtime, int set_serial)
      : runtime_(runtime), set_serial_(set_serial) {}

  bool Is(const std::shared_ptr<Runtime>& runtime, int set_serial) const {
    return set_serial_ == set_serial && !runtime_.owner_before(runtime) &&
           !runtime.owner_before(runtime_);
  }

 private:
  // A new runtime gives out the same numbers as the one before, but it is never
  // taken for it: a weak pointer keeps the place of the old one.
  std::weak_ptr<Runtime> runtime_;
  int set_serial_ = -1;
};

}  // namespace hvd

#endif  // HVD_ADAPTER_DESCRIBED_FOR_H_
