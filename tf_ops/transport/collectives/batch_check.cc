// SPDX-License-Identifier: Apache-2.0
// Refuses batches that make no sense, before they are on the wire.
#include "transport/collectives/batch_check.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "cpu/id_union.h"

namespace hvd {
namespace {

bool NoneNegative(const std::vector<int64_t>& rows) {
  return std::all_of(rows.begin(), rows.end(),
                     [](int64_t count) { return count >= 0; });
}

Status CheckRows(const Batch& batch, int rank, int size) {
  const bool gathers = batch.verb != Verb::kAlltoall;
  if (gathers && batch.rows.empty()) return Status::Ok();
  const std::string verb = Name(batch.verb);
  if (batch.rows.size() != batch.segments.size()) {
    return Internal(
        "a batch of " + verb + " has " + std::to_string(batch.segments.size()) +
        " segments but rows of " + std::to_string(batch.rows.size()) + ".");
  }
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    const std::vector<int64_t>& rows = batch.rows[i];
    const Segment& segment = batch.segments[i];
    const bool is_list =
        rows.size() == static_cast<size_t>(size) && NoneNegative(rows);
    // The last rows of an alltoall may go to no rank.
    const bool fits =
        is_list &&
        (gathers ? rows[static_cast<size_t>(rank)] * segment.row_count ==
                       segment.count
                 : std::accumulate(rows.begin(), rows.end(), int64_t{0}) *
                           segment.row_count <=
                       segment.count);
    if (!fits) {
      return Internal("the rows of segment " + std::to_string(i) +
                      " of a batch of " + verb + " make no sense.");
    }
  }
  return Status::Ok();
}

// Whether the tensors can be divided between ranks at rows.
Status CheckDivision(const Batch& batch) {
  for (const Segment& segment : batch.segments) {
    if (segment.rows >= 0 && segment.row_count >= 0 &&
        segment.rows * segment.row_count == segment.count) {
      continue;
    }
    return Internal("a segment of a batch of " + std::string(Name(batch.verb)) +
                    " has " + std::to_string(segment.rows) + " rows of " +
                    std::to_string(segment.row_count) + " elements, but " +
                    std::to_string(segment.count) + " elements.");
  }
  return Status::Ok();
}

// Whether the rows of a sparse allreduce can be those of its tables.
Status CheckIds(const Batch& batch) {
  if (batch.reduce_op != ReduceOp::kSum &&
      batch.reduce_op != ReduceOp::kAverage) {
    return InvalidArgument(
        "sparse_allreduce adds up rows: its op is Sum or Average, not " +
        std::string(Name(batch.reduce_op)) + ".");
  }
  if (!batch.rows.empty()) {
    HVD_RETURN_IF_ERROR(CheckUnions(batch, batch.rows));
  }
  for (size_t i = 0; i < batch.segments.size(); ++i) {
    const Segment& segment = batch.segments[i];
    int64_t most = segment.rows;
    if (!batch.rows.empty()) {
      most = *std::max_element(batch.rows[i].begin(), batch.rows[i].end());
    }
    if (segment.table_rows < 0 || most <= segment.table_rows) continue;
    return Internal("a rank has " + std::to_string(most) +
                    " rows of a table of " +
                    std::to_string(segment.table_rows) + ".");
  }
  return Status::Ok();
}

Status CheckReduction(const Batch& batch) {
  if (static_cast<uint8_t>(batch.reduce_op) >= kReduceOpCount) {
    return InvalidArgument(
        std::string(Name(batch.verb)) + " does not know the reduce op " +
        std::to_string(static_cast<int>(batch.reduce_op)) + ".");
  }
  if (batch.reduce_op == ReduceOp::kAdasum &&
      (batch.verb != Verb::kAllreduce || !IsFloating(batch.dtype))) {
    return InvalidArgument("Adasum is an allreduce of floating point, not " +
                           std::string(Name(batch.verb)) + " of " +
                           Name(batch.dtype) + ".");
  }
  if (batch.dtype == DataType::kBool) {
    return InvalidArgument(
        std::string(Name(batch.verb)) +
        " is not defined for bool; cast the tensor to an integer.");
  }
  if (batch.wire_dtype != batch.dtype &&
      !(IsFloating(batch.dtype) && IsFloating(batch.wire_dtype))) {
    return InvalidArgument(std::string(Name(batch.verb)) + " cannot send " +
                           Name(batch.dtype) + " as " + Name(batch.wire_dtype) +
                           "; only floating point is compressed.");
  }
  return Status::Ok();
}

// Whether they are ranks of the set, ascending, and this rank is one.
Status CheckPartners(const Batch& batch, int rank, int size) {
  const std::vector<int>& partners = batch.partners;
  if (partners.empty()) return Status::Ok();
  if (partners.front() >= 0 && partners.back() < size &&
      std::binary_search(partners.begin(), partners.end(), rank) &&
      std::adjacent_find(partners.begin(), partners.end(),
                         std::greater_equal<int>()) == partners.end() &&
      batch.reduce_op != ReduceOp::kAdasum) {
    return Status::Ok();
  }
  return Internal("the partners of a batch of " +
                  std::string(Name(batch.verb)) + " make no sense.");
}

}  // namespace

Status CheckUnions(const Batch& batch, const RankCounts& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t table_rows = batch.segments[i].table_rows;
    if (table_rows >= 0 && table_rows <= kMostUnitedIds) continue;
    int64_t total = 0;
    for (int64_t count : rows[i]) {
      if (!__builtin_add_overflow(total, count, &total) &&
          total <= kMostUnitedIds) {
        continue;
      }
      return ResourceExhausted("the ranks together have more than " +
                               std::to_string(kMostUnitedIds) +
                               " rows of a table; pass fewer at a time.");
    }
  }
  return Status::Ok();
}

Status CheckBatch(const Batch& batch, int rank, int size) {
  for (const Segment& segment : batch.segments) {
    if (segment.count < 0) return Internal("a segment has a negative count.");
  }
  switch (batch.verb) {
    case Verb::kAllreduce:
      HVD_RETURN_IF_ERROR(CheckPartners(batch, rank, size));
      return CheckReduction(batch);
    case Verb::kAllgather:
    case Verb::kAlltoall:
      return CheckRows(batch, rank, size);
    case Verb::kSparseAllreduce:
      HVD_RETURN_IF_ERROR(CheckRows(batch, rank, size));
      HVD_RETURN_IF_ERROR(CheckDivision(batch));
      HVD_RETURN_IF_ERROR(CheckIds(batch));
      return CheckReduction(batch);
    case Verb::kReducescatter:
      HVD_RETURN_IF_ERROR(CheckDivision(batch));
      return CheckReduction(batch);
    case Verb::kBroadcast:
      if (batch.root >= 0 && batch.root < size) return Status::Ok();
      return InvalidArgument("broadcast has the root " +
                             std::to_string(batch.root) +
                             "; the ranks of the process set are 0 to " +
                             std::to_string(size - 1) + ".");
    case Verb::kBarrier:
      return Internal("a barrier uses no transport.");
  }
  return Internal("a batch has an unknown verb.");
}

}  // namespace hvd
