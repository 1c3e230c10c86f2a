// SPDX-License-Identifier: Apache-2.0
// The ids of several ranks' rows are united.
//
// Pure functions of their arguments: every rank gets the same.
#ifndef HVD_CPU_ID_UNION_H_
#define HVD_CPU_ID_UNION_H_

#include <cstdint>
#include <limits>
#include <vector>

namespace hvd {

// A union has so many ids at most.
inline constexpr int64_t kMostUnitedIds = std::numeric_limits<uint32_t>::max();

struct IdUnion {
  std::vector<int64_t> ids;  // every id of any list, once, ascending
  // By list: where its ids are in `ids`.
  std::vector<std::vector<uint32_t>> places;
};

// The ids of each list are ascending, and each is there once.
[[nodiscard]] IdUnion UnionOfIds(
    const std::vector<std::vector<int64_t>>& lists);

}  // namespace hvd

#endif  // HVD_CPU_ID_UNION_H_
