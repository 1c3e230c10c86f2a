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
    elements += plan.united(segment).size() * plan.row_count(segment);
  }
  return elements * static_cast<int64_t>(SizeOf(dtype));
}

// The ranks' rows of the first run begin their blocks.
std::vector<RankRows> PartsOf(const std::vector<const std::byte*>& blocks) {
  std::vector<RankRows> parts;
  parts.reserve(blocks.size());
  for (const std::byte* block : blocks) parts.push_back({nullptr, 0, block});
  return parts;
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

void SparsePhase::MergeRun(const SparseRun& run, std::vector<RankRows>* parts,
                           void* out) const {
  const Batch& batch = work()->batch();
  for (size_t rank = 0; rank < parts->size(); ++rank) {
    const RowRange rows = plan_->RowsIn(run, static_cast<int>(rank));
    (*parts)[rank].places =
        plan_->places(run.segment, static_cast<int>(rank)).data() + rows.begin;
    (*parts)[rank].count = rows.size();
  }
  RowReduction reduction;
  reduction.dtype = batch.wire_dtype;
  reduction.averages = batch.reduce_op == ReduceOp::kAverage;
  reduction.ranks = batch.divisor > 0 ? batch.divisor : work()->size();
  reduction.postscale = batch.postscale;
  MergeRows(reduction, *parts, run.rows, run.columns, out);
  for (RankRows& part : *parts) {
    if (part.values == nullptr) continue;
    part.values = static_cast<const std::byte*>(part.values) +
                  part.count * run.columns * element_bytes();
  }
}

void SparsePhase::Merge(const SparsePiece& piece,
                        const std::vector<const std::byte*>& blocks,
                        std::byte* result) const {
  const CopyTimer timer(work()->times(), &BatchTimes::reduce_ns);
  std::vector<RankRows> parts = PartsOf(blocks);
  for (const SparseRun& run : piece) {
    MergeRun(run, &parts, result);
    result += run.elements() * element_bytes();
  }
}

void SparsePhase::Merge(const SparsePiece& piece,
                        const std::vector<const std::byte*>& blocks) const {
  const CopyTimer timer(work()->times(), &BatchTimes::reduce_ns);
  const Batch& batch = work()->batch();
  const auto bytes = static_cast<int64_t>(SizeOf(batch.dtype));
  std::vector<RankRows> parts = PartsOf(blocks);
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
      MergeRun(run, &parts, to);
      continue;
    }
    space.resize(static_cast<size_t>(run.elements() * element_bytes()));
    MergeRun(run, &parts, space.data());
    if (to == nullptr) continue;
    Unpack(batch.wire_dtype, batch.dtype, space.data(), to, run.elements());
  }
}

}  // namespace hvd
