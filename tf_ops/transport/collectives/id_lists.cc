// SPDX-License-Identifier: Apache-2.0
// Codes each rank's ids of each table by itself.
#include "transport/collectives/id_lists.h"

namespace hvd {

IdLists::IdLists(const Batch& batch, const RankCounts& rows) {
  for (size_t i = 0; i < batch.segments.size(); ++i) {
    const Segment& segment = batch.segments[i];
    std::vector<IdCode>& codes = codes_.emplace_back();
    for (int64_t count : rows[i]) {
      codes.emplace_back(count, segment.table_rows, batch.id_dtype);
    }
    size_ = static_cast<int>(codes.size());
    row_counts_.push_back(segment.row_count);
  }
}

int64_t IdLists::BytesOf(int rank) const {
  int64_t bytes = 0;
  for (size_t i = 0; i < codes_.size(); ++i) bytes += code(i, rank).bytes();
  return bytes;
}

int64_t IdLists::bytes() const {
  int64_t bytes = 0;
  for (int rank = 0; rank < size_; ++rank) bytes += BytesOf(rank);
  return bytes;
}

void IdLists::Encode(const Batch& batch, int rank, std::byte* out) const {
  for (size_t i = 0; i < codes_.size(); ++i) {
    code(i, rank).Encode(batch.segments[i].ids, out);
    out += code(i, rank).bytes();
  }
}

Result<std::shared_ptr<const SparsePlan>> IdLists::Plan(
    const std::byte* received) const {
  std::vector<std::vector<std::vector<int64_t>>> ids(codes_.size());
  for (auto& lists : ids) lists.resize(static_cast<size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) {
    for (size_t i = 0; i < codes_.size(); ++i) {
      if (!code(i, rank).Decode(received, &ids[i][static_cast<size_t>(rank)])) {
        return Internal(
            "a peer's ids of rows make no sense; do all ranks run the same "
            "build of hvd_tf?");
      }
      received += code(i, rank).bytes();
    }
  }
  return std::make_shared<const SparsePlan>(ids, row_counts_);
}

}  // namespace hvd
