// SPDX-License-Identifier: Apache-2.0
// Draws rows, and adds them up in rank order as float32 does.
#include "sparse_call.h"

#include <algorithm>
#include <set>
#include <utility>

#include "harness.h"
#include "typed_values.h"

namespace hvd {
namespace {

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x7fb5d329728ea185ull;
  x = (x ^ (x >> 27)) * 0x81dadef4bc2dd44dull;
  return x ^ (x >> 33);
}

// Elements are those of SampleValue where these are exact, else they round.
double ValueOf(DataType dtype, int rank, int64_t i) {
  if (dtype != DataType::kFloat32) {
    return SampleValue(dtype, ReduceOp::kSum, rank, i);
  }
  return static_cast<float>(1 + rank) / 7.0f +
         static_cast<float>(i % 1000) / 3.0f;
}

}  // namespace

SparseCall::SparseCall(const Transport& transport, Batch batch,
                       std::vector<SparseTable> tables, bool knows_rows,
                       std::vector<int> absent)
    : rank_(transport.rank()),
      size_(transport.size()),
      batch_(std::move(batch)),
      tables_(std::move(tables)),
      absent_(std::move(absent)) {
  batch_.verb = Verb::kSparseAllreduce;
  for (size_t t = 0; t < tables_.size(); ++t) {
    std::vector<std::vector<int64_t>>& ids_by_rank = ids_.emplace_back();
    for (int rank = 0; rank < size_; ++rank) {
      ids_by_rank.push_back(DrawIds(t, rank));
    }
    const std::vector<int64_t>& ids = IdsOf(t, rank_);
    const int64_t row_count = tables_[t].row_count;
    Segment& segment = batch_.segments.emplace_back();
    segment.rows = static_cast<int64_t>(ids.size());
    segment.row_count = row_count;
    segment.count = segment.rows * row_count;
    segment.table_rows = tables_[t].table_rows;
    in_.emplace_back(static_cast<size_t>(segment.count) * SizeOf(batch_.dtype));
    in_ids_.emplace_back(ids.size() * SizeOf(batch_.id_dtype));
    for (size_t k = 0; k < ids.size(); ++k) {
      PutValue(batch_.id_dtype, in_ids_[t].data(), static_cast<int64_t>(k),
               static_cast<double>(ids[k]));
      for (int64_t c = 0; c < row_count; ++c) {
        PutValue(batch_.dtype, in_[t].data(),
                 static_cast<int64_t>(k) * row_count + c,
                 ValueOf(batch_.dtype, rank_, ids[k] * row_count + c));
      }
    }
    if (!knows_rows) continue;
    std::vector<int64_t>& rows = batch_.rows.emplace_back();
    for (int rank = 0; rank < size_; ++rank) {
      rows.push_back(static_cast<int64_t>(IdsOf(t, rank).size()));
    }
  }
  for (size_t t = 0; t < tables_.size() && !IsAbsent(rank_); ++t) {
    batch_.segments[t].in = in_[t].data();
    batch_.segments[t].ids = in_ids_[t].data();
  }
  batch_.allocate = [this](const RankCounts& rows,
                           std::vector<void*>* outputs) {
    return Allocate(rows, outputs);
  };
}

bool SparseCall::IsAbsent(int rank) const {
  return std::find(absent_.begin(), absent_.end(), rank) != absent_.end();
}

std::vector<int64_t> SparseCall::DrawIds(size_t table, int rank) const {
  const SparseTable& of = tables_[table];
  std::vector<int64_t> ids;
  const bool has_none = of.last_has_none && size_ > 1 && rank == size_ - 1;
  if (IsAbsent(rank) || has_none) return ids;
  for (int64_t id = 0; id < of.below; ++id) {
    const auto seed = static_cast<uint64_t>(id * 64 + rank) + table * 977;
    if (Mix(seed) % static_cast<uint64_t>(of.one_in) == 0) ids.push_back(id);
  }
  return ids;
}

std::vector<int64_t> SparseCall::UnitedIds(size_t table) const {
  std::set<int64_t> ids;
  for (int rank = 0; rank < size_; ++rank) {
    for (int64_t id : IdsOf(table, rank)) ids.insert(id);
  }
  return {ids.begin(), ids.end()};
}

Status SparseCall::Allocate(const RankCounts& rows,
                            std::vector<void*>* outputs) {
  EXPECT_FALSE(done_);
  ++allocated_;
  HVD_RETURN_IF_ERROR(allocate_error_);
  for (size_t t = 0; t < tables_.size(); ++t) {
    EXPECT_EQ(rows[t].size(), 1u);
    const auto count = static_cast<size_t>(rows[t][0]);
    out_.emplace_back(count * static_cast<size_t>(tables_[t].row_count) *
                          SizeOf(batch_.dtype),
                      'x');
    out_ids_.emplace_back(count * SizeOf(batch_.id_dtype), 'x');
  }
  for (size_t t = 0; t < tables_.size(); ++t) {
    const bool drops = IsAbsent(rank_);
    outputs->push_back(drops ? nullptr : out_[t].data());
    outputs->push_back(drops ? nullptr : out_ids_[t].data());
  }
  if (on_allocate_) on_allocate_();
  return Status::Ok();
}

void SparseCall::Start(Transport* transport) {
  id_ = transport->Start(batch_, [this](const Status& status) {
    EXPECT_FALSE(done_);
    done_ = true;
    status_ = status;
  });
}

double SparseCall::Expected(size_t table, int64_t id, int64_t column) const {
  const DataType dtype = batch_.dtype;
  const auto cast = [&](double value) {
    if (dtype != DataType::kFloat32) {
      return IsFloating(dtype) ? value : std::trunc(value);
    }
    char space[8];
    PutValue(batch_.wire_dtype, space, 0, static_cast<float>(value));
    return GetValue(batch_.wire_dtype, space, 0);
  };
  const auto as_computed = [&](double value) {
    return dtype == DataType::kFloat32
               ? static_cast<double>(static_cast<float>(value))
               : value;
  };
  double sum = 0;
  bool is_first = true;
  for (int rank = 0; rank < size_; ++rank) {
    const std::vector<int64_t>& ids = IdsOf(table, rank);
    if (!std::binary_search(ids.begin(), ids.end(), id)) continue;
    const double value =
        cast(ValueOf(dtype, rank, id * tables_[table].row_count + column) *
             batch_.prescale);
    sum = is_first ? value : as_computed(sum + value);
    is_first = false;
  }
  if (batch_.reduce_op == ReduceOp::kAverage) {
    const int64_t ranks = batch_.divisor > 0 ? batch_.divisor : size_;
    sum = as_computed(sum / static_cast<double>(ranks));
    if (!IsFloating(dtype)) sum = std::trunc(sum);
  }
  return Wrapped(dtype, cast(as_computed(sum * batch_.postscale)));
}

void SparseCall::ExpectNumbers() const {
  EXPECT_EQ(status_.message(), "");
  EXPECT_EQ(allocated_, 1);
  if (!status_.ok() || IsAbsent(rank_)) return;
  int64_t wrong = 0;
  for (size_t t = 0; t < tables_.size(); ++t) {
    const std::vector<int64_t> ids = UnitedIds(t);
    const int64_t row_count = tables_[t].row_count;
    ASSERT_EQ(out_ids_[t].size(), ids.size() * SizeOf(batch_.id_dtype));
    // Only some rows of a large table.
    const size_t step = ids.size() * row_count > 3000 ? 7 : 1;
    for (size_t k = 0; k < ids.size(); ++k) {
      wrong += GetValue(batch_.id_dtype, out_ids_[t].data(),
                        static_cast<int64_t>(k)) != static_cast<double>(ids[k]);
    }
    for (size_t k = 0; k < ids.size(); k += step) {
      for (int64_t c = 0; c < row_count; c += step) {
        wrong += GetValue(batch_.dtype, out_[t].data(),
                          static_cast<int64_t>(k) * row_count + c) !=
                 Expected(t, ids[k], c);
      }
    }
  }
  EXPECT_EQ(wrong, 0);
}

void SparseCall::TakeMemory() {
  for (auto* memory : {&in_, &in_ids_}) {
    for (std::vector<char>& part : *memory) std::vector<char>().swap(part);
  }
  for (auto* memory : {&out_, &out_ids_}) {
    for (std::vector<char>& part : *memory) {
      std::fill(part.begin(), part.end(), 'm');
    }
  }
}

bool SparseCall::memory_untouched() const {
  for (const auto* memory : {&out_, &out_ids_}) {
    for (const std::vector<char>& part : *memory) {
      if (std::count(part.begin(), part.end(), 'm') !=
          static_cast<std::ptrdiff_t>(part.size())) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace hvd
