// SPDX-License-Identifier: Apache-2.0
// CheckMember: only members of a process set make a transport of it.
#ifndef HVD_TRANSPORT_MEMBER_CHECK_H_
#define HVD_TRANSPORT_MEMBER_CHECK_H_

#include <string>

#include "core/backend.h"
#include "core/process_set.h"
#include "core/status.h"

namespace hvd {

// Names the set by its id, for users do not know its slot.
[[nodiscard]] inline Status CheckMember(const ProcessSet& process_set,
                                        const Topology& topology) {
  if (process_set.rank >= 0) return Status::Ok();
  return InvalidArgument("rank " + std::to_string(topology.rank) +
                         " is not in process set " +
                         std::to_string(process_set.id) + ".");
}

}  // namespace hvd

#endif  // HVD_TRANSPORT_MEMBER_CHECK_H_
