// SPDX-License-Identifier: Apache-2.0
// Lays out the numbers of a phase of sizes, and checks what has come.
#include "transport/collectives/sizes_exchange.h"

#include <utility>

namespace hvd {
namespace {

// Whether rows of all ranks fit into memory's numbers.
bool Fits(const Segment& segment, DataType dtype,
          const std::vector<int64_t>& rows) {
  int64_t total = 0;
  for (int64_t count : rows) {
    if (count < 0 || __builtin_add_overflow(total, count, &total)) return false;
  }
  const auto element_bytes = static_cast<int64_t>(SizeOf(dtype));
  return !__builtin_mul_overflow(total, segment.row_count, &total) &&
         !__builtin_mul_overflow(total, element_bytes, &total);
}

}  // namespace

std::vector<SegmentMap> MapsByRank(const std::vector<Segment>& segments,
                                   const RankCounts& rows, int size) {
  std::vector<SegmentMap> maps;
  std::vector<int64_t> counts(segments.size()), firsts(segments.size(), 0);
  for (int rank = 0; rank < size; ++rank) {
    for (size_t i = 0; i < segments.size(); ++i) {
      counts[i] = rows[i][static_cast<size_t>(rank)] * segments[i].row_count;
    }
    maps.emplace_back(counts, firsts);
    for (size_t i = 0; i < segments.size(); ++i) firsts[i] += counts[i];
  }
  return maps;
}

SizesExchange::SizesExchange(std::vector<int64_t> sent, const BatchWork& work)
    : segments_(static_cast<int64_t>(work.batch().segments.size())),
      size_(work.size()),
      sent_(std::move(sent)),
      received_(static_cast<size_t>(segments_ * work.size()), 0) {}

Operands SizesExchange::operands() {
  Operands operands;
  Segment& numbers = operands.segments.emplace_back();
  numbers.in = sent_.data();
  numbers.out = received_.data();
  numbers.count = static_cast<int64_t>(sent_.size());
  operands.dtype = operands.wire_dtype = DataType::kInt64;
  operands.is_callers = false;
  operands.are_sizes = true;
  return operands;
}

SegmentMap SizesExchange::PlaceOf(int rank) const {
  return SegmentMap({segments_}, {rank * segments_});
}

std::vector<SegmentMap> SizesExchange::Places() const {
  std::vector<SegmentMap> places;
  for (int rank = 0; rank < size_; ++rank) places.push_back(PlaceOf(rank));
  return places;
}

bool SizesExchange::Check(BatchWork* work) const {
  const Batch& batch = work->batch();
  const RankCounts all = rows();
  for (size_t i = 0; i < all.size(); ++i) {
    if (Fits(batch.segments[i], batch.dtype, all[i])) continue;
    work->FailHere(
        Internal("a peer's numbers of rows make no sense; do all ranks run the "
                 "same build of hvd_tf?"));
    return false;
  }
  return true;
}

RankCounts SizesExchange::rows() const {
  RankCounts rows(static_cast<size_t>(segments_));
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int rank = 0; rank < size_; ++rank) {
      const auto place = static_cast<size_t>(rank * segments_) + i;
      rows[i].push_back(received_[place]);
    }
  }
  return rows;
}

std::unique_ptr<Phase> NewRowCountsPhase(
    BatchWork* work,
    std::function<std::unique_ptr<Phase>(const RankCounts&)> then) {
  std::vector<int64_t> own;
  for (const Segment& segment : work->batch().segments) {
    own.push_back(segment.rows);
  }
  const auto sizes = std::make_shared<SizesExchange>(std::move(own), *work);
  return NewAllgatherPhase(
      work, sizes->operands(), sizes->PlaceOf(0), sizes->Places(),
      [work, sizes, then = std::move(then)](
          const Phase& finished) -> std::unique_ptr<Phase> {
        if (finished.is_poisoned() || !sizes->Check(work)) return nullptr;
        return then(sizes->rows());
      });
}

}  // namespace hvd
