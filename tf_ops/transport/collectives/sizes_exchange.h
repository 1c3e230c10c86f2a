// SPDX-License-Identifier: Apache-2.0
// SizesExchange: the rows that ranks tell each other before data moves.
#ifndef HVD_TRANSPORT_COLLECTIVES_SIZES_EXCHANGE_H_
#define HVD_TRANSPORT_COLLECTIVES_SIZES_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/rows.h"
#include "core/transport.h"
#include "transport/collectives/batch_work.h"
#include "transport/collectives/packer.h"
#include "transport/collectives/phase.h"
#include "transport/collectives/segment_map.h"

namespace hvd {

// Where the rows of each rank are in segments that have `rows` of
// [segment][rank], in rank order.
[[nodiscard]] std::vector<SegmentMap> MapsByRank(
    const std::vector<Segment>& segments, const RankCounts& rows, int size);

// The memory of a phase of sizes. It is the transport's own, so a detached
// batch still learns what its peers expect of it. Owner: the phase's Next.
class SizesExchange {
 public:
  // `sent` has one number for each segment, for all ranks. Or it has so many
  // for each rank, one rank after another.
  SizesExchange(std::vector<int64_t> sent, const BatchWork& work);
  SizesExchange(const SizesExchange&) = delete;
  SizesExchange& operator=(const SizesExchange&) = delete;

  Operands operands();
  // Where the numbers for or of a rank are, and those of all ranks.
  SegmentMap PlaceOf(int rank) const;
  std::vector<SegmentMap> Places() const;

  // Whether the numbers that have come make sense. If not, the batch fails:
  // memory must not depend on them.
  [[nodiscard]] bool Check(BatchWork* work) const;
  // Rows of [segment][rank].
  RankCounts rows() const;

 private:
  const int64_t segments_;
  const int size_;
  std::vector<int64_t> sent_;
  std::vector<int64_t> received_;  // one rank after another
};

// The ranks tell all others how many rows they have of each segment. `then`
// gets these, of [segment][rank], and makes the phase that follows.
[[nodiscard]] std::unique_ptr<Phase> NewRowCountsPhase(
    BatchWork* work,
    std::function<std::unique_ptr<Phase>(const RankCounts&)> then);

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_SIZES_EXCHANGE_H_
