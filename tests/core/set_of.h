// SPDX-License-Identifier: Apache-2.0
// SetOf: a process set for tests that make transports by themselves.
#ifndef HVD_TESTS_CORE_SET_OF_H_
#define HVD_TESTS_CORE_SET_OF_H_

#include <algorithm>
#include <utility>
#include <vector>

#include "core/process_set.h"

namespace hvd {

// The set of these ranks of the job, as `job_rank` knows it.
inline ProcessSet SetOf(std::vector<int> ranks, int job_rank, int id = 0) {
  ProcessSet set;
  set.ranks = std::move(ranks);
  const auto own = std::find(set.ranks.begin(), set.ranks.end(), job_rank);
  if (own != set.ranks.end()) {
    set.rank = static_cast<int>(own - set.ranks.begin());
  }
  set.id = id;
  return set;
}

}  // namespace hvd

#endif  // HVD_TESTS_CORE_SET_OF_H_
