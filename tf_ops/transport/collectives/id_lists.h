// SPDX-License-Identifier: Apache-2.0
// IdLists: the ids that each rank has of the tables of a batch, as bytes that
// cross the wire.
#ifndef HVD_TRANSPORT_COLLECTIVES_ID_LISTS_H_
#define HVD_TRANSPORT_COLLECTIVES_ID_LISTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/rows.h"
#include "core/status.h"
#include "core/transport.h"
#include "transport/collectives/id_code.h"
#include "transport/collectives/sparse_plan.h"

namespace hvd {

class IdLists {
 public:
  // `rows` of [segment][rank], which CheckUnions has agreed to.
  IdLists(const Batch& batch, const RankCounts& rows);

  // How many bytes the ids of a rank have, all segments together.
  int64_t BytesOf(int rank) const;
  int64_t bytes() const;  // of all ranks
  // Writes this rank's ids.
  void Encode(const Batch& batch, int rank, std::byte* out) const;
  // `received` has those of rank 0, then those of rank 1, and so on. All ranks
  // have got the same. Not Ok: it makes no sense.
  [[nodiscard]] Result<std::shared_ptr<const SparsePlan>> Plan(
      const std::byte* received) const;

 private:
  size_t segment_count() const { return row_counts_.size(); }
  const IdCode& code(size_t segment, int rank) const {
    return codes_[segment * static_cast<size_t>(size_) +
                  static_cast<size_t>(rank)];
  }

  const int size_;
  std::vector<IdCode> codes_;  // of [segment, rank]
  std::vector<int64_t> row_counts_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_ID_LISTS_H_
