// SPDX-License-Identifier: Apache-2.0
// Codes each rank's ids of each table by itself.
#include "transport/collectives/id_lists.h"

#include <algorithm>
#include <utility>

namespace hvd {

IdLists::IdLists(const Batch& batch, const RankCounts& rows)
    : size_(static_cast<int>(rows[0].size())) {
  codes_.reserve(rows.size() * rows[0].size());
  row_counts_.reserve(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const Segment& segment = batch.segments[i];
    for (int64_t count : rows[i]) {
      codes_.emplace_back(count, segment.table_rows, batch.id_dtype);
    }
    row_counts_.push_back(segment.row_count);
  }
}

int64_t IdLists::BytesOf(int rank) const {
  int64_t bytes = 0;
  for (size_t i = 0; i < segment_count(); ++i) bytes += code(i, rank).bytes();
  return bytes;
}

int64_t IdLists::bytes() const {
  int64_t bytes = 0;
  for (const IdCode& code : codes_) bytes += code.bytes();
  return bytes;
}

void IdLists::Encode(const Batch& batch, int rank, std::byte* out) const {
  for (size_t i = 0; i < segment_count(); ++i) {
    code(i, rank).Encode(batch.segments[i].ids, out);
    out += code(i, rank).bytes();
  }
}

Result<std::shared_ptr<const SparsePlan>> IdLists::Plan(
    const std::byte* received) const {
  int64_t rows = 0, most_rows = 0;  // of all segments, and of one
  for (size_t i = 0; i < segment_count(); ++i) {
    int64_t of_segment = 0;
    for (int rank = 0; rank < size_; ++rank) of_segment += code(i, rank).rows();
    rows += of_segment;
    most_rows = std::max(most_rows, of_segment);
  }
  std::vector<const std::byte*> next;  // by rank
  for (int rank = 0; rank < size_; ++rank) {
    next.push_back(received);
    received += BytesOf(rank);
  }
  auto plan = std::make_shared<SparsePlan>(size_, row_counts_, rows);
  const std::unique_ptr<int64_t[]> space(
      new int64_t[static_cast<size_t>(most_rows)]);
  std::vector<Span<int64_t>> ids(next.size());
  for (size_t i = 0; i < segment_count(); ++i) {
    int64_t* out = space.get();
    for (int rank = 0; rank < size_; ++rank) {
      const IdCode& of_rank = code(i, rank);
      if (!of_rank.Decode(next[rank], out)) {
        return Internal(
            "a peer's ids of rows make no sense; do all ranks run the same "
            "build of hvd_tf?");
      }
      next[rank] += of_rank.bytes();
      ids[rank] = {out, of_rank.rows()};
      out += of_rank.rows();
    }
    plan->Unite(ids);
  }
  return std::shared_ptr<const SparsePlan>(std::move(plan));
}

}  // namespace hvd
