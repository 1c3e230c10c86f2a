// SPDX-License-Identifier: Apache-2.0
// Reduces pieces of rows.
#include "transport/collectives/sparse_phase.h"

#include <algorithm>
#include <utility>

#include "core/rows.h"
#include "cpu/elementwise.h"
#include "cpu/row_merge.h"

namespace hvd {
namespace {

int64_t BytesOfResult(const SparsePlan& plan,
                      const std::vector<size_t>& segments, DataType dtype) {
  int64_t elements = 0;
  for (size_t segment : segments) {
    elements += static_cast<int64_t>(plan.united(segment).size()) *
                plan.row_count(segment);
  }
  return elements * static_cast<int64_t>(SizeOf(dtype));
}

}  // namespace

int64_t ElementsOnWire(const BatchWork& work, int64_t bytes) {
  const auto element_bytes =
      static_cast<int64_t>(SizeOf(work.batch().wire_dtype));
  return std::max(bytes / element_bytes, kAlignedElements);
}

SparsePhase::SparsePhase(BatchWork* work,
                         std::shared_ptr<const SparsePlan> plan,
                         const std::vector<size_t>& segments,
                         std::vector<SparsePiece> pieces, Next next)
    : Phase(work, ReducedOperands(work->batch()),
            BytesOfResult(*plan, segments, work->batch().dtype),
            std::move(next)),
      plan_(std::move(plan)),
      pieces_(std::move(pieces)) {}

const SparsePiece& SparsePhase::piece(int64_t index) const {
  static const SparsePiece* const none = new SparsePiece;
  return index < piece_count() ? pieces_[static_cast<size_t>(index)] : *none;
}

void SparsePhase::MergeRun(const SparseRun& run,
                           std::vector<const std::byte*>* blocks,
                           void* out) const {
  const Batch& batch = work()->batch();
  std::vector<RankRows> parts;
  parts.reserve(blocks->size());
  for (size_t rank = 0; rank < blocks->size(); ++rank) {
    const RowRange rows = plan_->RowsIn(run, static_cast<int>(rank));
    const std::byte*& values = (*blocks)[rank];
    parts.push_back(
        {plan_->places(run.segment, static_cast<int>(rank)).data() + rows.begin,
         rows.size(), values});
    if (values != nullptr) {
      values += rows.size() * run.columns * element_bytes();
    }
  }
  RowReduction reduction;
  reduction.dtype = batch.wire_dtype;
  reduction.averages = batch.reduce_op == ReduceOp::kAverage;
  reduction.ranks = batch.divisor > 0 ? batch.divisor : work()->size();
  reduction.postscale = batch.postscale;
  MergeRows(reduction, parts, run.rows, run.columns, out);
}

void SparsePhase::Merge(const SparsePiece& piece,
                        const std::vector<const std::byte*>& blocks,
                        std::byte* result) const {
  const CopyTimer timer(work()->times(), &BatchTimes::reduce_ns);
  std::vector<const std::byte*> next = blocks;
  for (const SparseRun& run : piece) {
    MergeRun(run, &next, result);
    result += run.elements() * element_bytes();
  }
}

void SparsePhase::Merge(const SparsePiece& piece,
                        const std::vector<const std::byte*>& blocks) const {
  const CopyTimer timer(work()->times(), &BatchTimes::reduce_ns);
  const Batch& batch = work()->batch();
  const auto bytes = static_cast<int64_t>(SizeOf(batch.dtype));
  std::vector<const std::byte*> next = blocks;
  std::vector<std::byte> space;
  for (const SparseRun& run : piece) {
    void* const out = batch.segments[run.segment].out;
    std::byte* const to =
        out == nullptr ? nullptr
                       : static_cast<std::byte*>(out) +
                             (run.rows.begin * plan_->row_count(run.segment) +
                              run.column) *
                                 bytes;
    if (to != nullptr && batch.dtype == batch.wire_dtype) {
      MergeRun(run, &next, to);
      continue;
    }
    space.resize(static_cast<size_t>(run.elements() * element_bytes()));
    MergeRun(run, &next, space.data());
    if (to == nullptr) continue;
    Unpack(batch.wire_dtype, batch.dtype, space.data(), to, run.elements());
  }
}

}  // namespace hvd
