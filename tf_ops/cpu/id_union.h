// SPDX-License-Identifier: Apache-2.0
// The ids of several ranks' rows are united.
//
// A pure function of its arguments: every rank gets the same.
#ifndef HVD_CPU_ID_UNION_H_
#define HVD_CPU_ID_UNION_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "core/span.h"

namespace hvd {

// A union has so many ids at most.
inline constexpr int64_t kMostUnitedIds = std::numeric_limits<uint32_t>::max();

// Writes every id of any list to `united`, once, ascending, and returns how
// many there are. The ids of each list are ascending, each once. Writes to
// `places`, list by list, where each id is in `united`. Both have room for as
// many as all lists have.
[[nodiscard]] int64_t UniteIds(const std::vector<Span<int64_t>>& lists,
                               uint32_t* places, int64_t* united);

}  // namespace hvd

#endif  // HVD_CPU_ID_UNION_H_
