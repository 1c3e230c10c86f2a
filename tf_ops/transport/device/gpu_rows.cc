// SPDX-License-Identifier: Apache-2.0
// Reads what the ranks tell, places rows and lists of them, and lists the work.
#include "transport/device/gpu_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "cpu/id_union.h"
#include "cpu/row_groups.h"
#include "transport/collectives/batch_check.h"
#include "transport/collectives/id_lists.h"

namespace hvd {
namespace {

constexpr int64_t kAlignment = 64;

// How many rows a message has of each table comes first.
int64_t HeaderBytes(const Batch& batch) {
  return static_cast<int64_t>(batch.segments.size() * sizeof(int64_t));
}

Status Nonsense() {
  return Internal(
      "a peer's rows make no sense; do all ranks run the same build of "
      "hvd_tf?");
}

// A thread of a GPU adds up so many rows at most, where there may be more. It
// waits for memory again and again.
constexpr uint32_t kMostTerms = 64;

// A place of so many bytes, at a boundary that suits a GPU's accesses.
int64_t Add(int64_t bytes, int64_t* end) {
  const int64_t place = *end;
  *end += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return place;
}

int64_t BytesOf(const std::vector<uint32_t>& numbers) {
  return static_cast<int64_t>(numbers.size() * sizeof(uint32_t));
}

// Writes the numbers to pinned memory. Returns where they will be on the GPU.
const uint32_t* Put(const std::vector<uint32_t>& numbers, int64_t at,
                    std::byte* gpu, std::byte* pinned) {
  if (!numbers.empty()) {
    std::memcpy(pinned + at, numbers.data(),
                static_cast<size_t>(BytesOf(numbers)));
  }
  return reinterpret_cast<const uint32_t*>(gpu + at);
}

// The type that sums of this type are formed in.
DataType PartType(DataType dtype) {
  return dtype == DataType::kFloat64 ? dtype : DataType::kFloat32;
}

}  // namespace

GpuRows::GpuRows(const Batch* batch, int rank, int size, bool can_take_part)
    : batch_(batch), rank_(rank), size_(size) {
  const auto header = static_cast<size_t>(HeaderBytes(*batch));
  if (!can_take_part) {
    // As long as the peers expect it to be.
    const std::vector<int64_t> bytes = MessageBytes();
    sent_.resize(bytes.empty() ? header : static_cast<size_t>(bytes[rank]));
    return;
  }
  RankCounts own;
  for (const Segment& segment : batch->segments) own.push_back({segment.rows});
  const IdLists lists(*batch, own);
  sent_.resize(header + static_cast<size_t>(lists.bytes()));
  for (size_t s = 0; s < own.size(); ++s) {
    std::memcpy(sent_.data() + s * sizeof(int64_t), &own[s][0],
                sizeof(int64_t));
  }
  lists.Encode(*batch, 0, sent_.data() + header);
}

std::vector<int64_t> GpuRows::MessageBytes() const {
  std::vector<int64_t> bytes;
  if (batch_->rows.empty()) return bytes;
  const IdLists lists(*batch_, batch_->rows);
  for (int rank = 0; rank < size_; ++rank) {
    bytes.push_back(HeaderBytes(*batch_) + lists.BytesOf(rank));
  }
  return bytes;
}

void* GpuRows::Receive(const std::vector<int64_t>& bytes) {
  received_bytes_ = bytes;
  int64_t total = 0;
  for (const int64_t of_rank : bytes) total += of_rank;
  received_.resize(static_cast<size_t>(total));
  return received_.data();
}

Status GpuRows::Read() {
  const size_t segments = batch_->segments.size();
  RankCounts rows(segments);
  std::vector<std::byte> ids;
  const std::byte* message = received_.data();
  for (const int64_t bytes : received_bytes_) {
    if (bytes < HeaderBytes(*batch_)) return Nonsense();
    for (size_t s = 0; s < segments; ++s) {
      int64_t count = 0;
      std::memcpy(&count, message + s * sizeof(count), sizeof(count));
      const int64_t table_rows = batch_->segments[s].table_rows;
      const int64_t most = table_rows < 0 ? kMostUnitedIds : table_rows;
      if (count < 0 || count > std::min(most, kMostUnitedIds)) {
        return Nonsense();
      }
      rows[s].push_back(count);
    }
    ids.insert(ids.end(), message + HeaderBytes(*batch_), message + bytes);
    message += bytes;
  }
  if (!batch_->rows.empty() && rows != batch_->rows) return Nonsense();
  HVD_RETURN_IF_ERROR(CheckUnions(*batch_, rows));
  const IdLists lists(*batch_, rows);
  for (int rank = 0; rank < size_; ++rank) {
    if (lists.BytesOf(rank) + HeaderBytes(*batch_) !=
        received_bytes_[static_cast<size_t>(rank)]) {
      return Nonsense();
    }
  }
  Result<std::shared_ptr<const SparsePlan>> plan = lists.Plan(ids.data());
  if (!plan.ok()) return plan.status();
  plan_ = std::move(plan.value());
  return FindTables();
}

RankCounts GpuRows::ResultRows() const {
  RankCounts rows;
  for (const Table& table : tables_) {
    rows.push_back({table.result.terms.rows()});
  }
  return rows;
}

int64_t GpuRows::CountOf(size_t s, int rank) const {
  return plan_->places(s, rank).size();
}

int64_t GpuRows::RowBytes(size_t s) const {
  return batch_->segments[s].row_count *
         static_cast<int64_t>(SizeOf(batch_->wire_dtype));
}

Status GpuRows::FindTables() {
  for (size_t s = 0; s < plan_->segment_count(); ++s) {
    Table& table = tables_.emplace_back();
    int64_t all = 0, most = 0;
    for (int rank = 0; rank < size_; ++rank) {
      all += CountOf(s, rank);
      most = std::max(most, CountOf(s, rank));
    }
    // Ranks mostly have nearly as many rows. One call of all takes less time
    // than one for each, as long as little is sent that nobody reads.
    if (most * size_ <= all + all / 4) table.even_rows = most;
    int64_t end = 0;
    std::vector<RowList> lists;
    for (int rank = 0; rank < size_; ++rank) {
      table.first_rows.push_back(end);
      lists.push_back({plan_->places(s, rank), end});
      end += table.even_rows > 0 ? most : CountOf(s, rank);
    }
    constexpr int64_t kMostRows = std::numeric_limits<uint32_t>::max();
    if (end > kMostRows) {
      return ResourceExhausted(
          "the ranks together have more rows of a table than a GPU numbers, " +
          std::to_string(kMostRows) + "; pass fewer at a time.");
    }
    table.rows_at = Add(end * RowBytes(s), &rows_end_);
    table.result.terms = TermsOf(lists, plan_->united(s).size());
    FindOwnTerms(s);
  }
  terms_end_ = rows_end_;
  for (Table& table : tables_) {
    PlaceTerms(&table.own);
    PlaceTerms(&table.parts);
    PlaceTerms(&table.result);
  }
  return Status::Ok();
}

void GpuRows::FindOwnTerms(size_t s) {
  const Segment& segment = batch_->segments[s];
  if (segment.groups == nullptr) return;
  Table& table = tables_[s];
  table.own.terms = TermsOf({{segment.groups->places, 0}}, segment.rows);
  table.parts.terms = CutTerms(kMostTerms, &table.own.terms);
  const auto parts = static_cast<int64_t>(table.parts.terms.sources.size());
  table.parts_at =
      Add(parts * segment.row_count *
              static_cast<int64_t>(SizeOf(PartType(batch_->dtype))),
          &rows_end_);
}

void GpuRows::PlaceTerms(PlacedTerms* placed) {
  placed->begins_at = Add(BytesOf(placed->terms.begins), &terms_end_);
  placed->sources_at = Add(BytesOf(placed->terms.sources), &terms_end_);
}

void GpuRows::Place(void* gpu, void* pinned,
                    const std::vector<void*>& outputs) {
  const DataType dtype = batch_->dtype, wire = batch_->wire_dtype;
  const DataType part = PartType(dtype);
  const RowSumFactors own = {1.0, 1.0, true, batch_->prescale};
  own_sums_ = {{{dtype, wire, own}, {}},
               {{dtype, part, {1.0, 1.0, false, 1.0}}, {}},
               {{part, wire, own}, {}}};
  sums_.operation = {
      wire, dtype, {DivisorOf(*batch_, size_), batch_->postscale, true, 1.0}};
  calls_.dtype = DataType::kUint8;
  auto* const on_gpu = static_cast<std::byte*>(gpu);
  // Places in both are counted from the same beginning.
  auto* const on_host = static_cast<std::byte*>(pinned) - rows_end_;
  for (size_t s = 0; s < tables_.size(); ++s) {
    AddOwn(s, on_gpu, on_host);
    AddCalls(s, on_gpu);
    if (void* const out = outputs[2 * s]) {
      sums_.rows.push_back(SumsOf(tables_[s].result,
                                  on_gpu + tables_[s].rows_at, out, s, on_gpu,
                                  on_host));
    }
    if (void* const ids = outputs[2 * s + 1]) {
      WriteIds(batch_->id_dtype, plan_->united(s), ids);
    }
  }
  terms_ = {{pinned, on_gpu + rows_end_, pinned_bytes()}};
}

RowSums GpuRows::SumsOf(const PlacedTerms& placed, const void* from, void* to,
                        size_t s, std::byte* gpu, std::byte* pinned) const {
  const int64_t row_count = batch_->segments[s].row_count;
  return {from,
          to,
          Put(placed.terms.begins, placed.begins_at, gpu, pinned),
          Put(placed.terms.sources, placed.sources_at, gpu, pinned),
          placed.terms.rows() * row_count,
          row_count};
}

void GpuRows::AddOwn(size_t s, std::byte* gpu, std::byte* pinned) {
  const Segment& segment = batch_->segments[s];
  const Table& table = tables_[s];
  if (segment.count == 0) return;
  std::byte* const to =
      gpu + table.rows_at +
      table.first_rows[static_cast<size_t>(rank_)] * RowBytes(s);
  std::byte* const parts = gpu + table.parts_at;
  if (segment.groups == nullptr) {
    copies_.push_back({segment.in, to, segment.count});
  } else if (table.parts.terms.begins.empty()) {
    own_sums_[0].rows.push_back(
        SumsOf(table.own, segment.in, to, s, gpu, pinned));
  } else {
    own_sums_[1].rows.push_back(
        SumsOf(table.own, segment.in, parts, s, gpu, pinned));
    own_sums_[2].rows.push_back(SumsOf(table.parts, parts, to, s, gpu, pinned));
  }
}

void GpuRows::AddCalls(size_t s, std::byte* gpu) {
  using Kind = CommunicatorCall::Kind;
  const Table& table = tables_[s];
  const auto first = [&](int rank) {
    return gpu + table.rows_at +
           table.first_rows[static_cast<size_t>(rank)] * RowBytes(s);
  };
  if (RowBytes(s) == 0) return;
  if (table.even_rows > 0) {
    calls_.calls.push_back({Kind::kAllgather, 0, first(rank_),
                            gpu + table.rows_at,
                            table.even_rows * RowBytes(s)});
    return;
  }
  for (int rank = 0; rank < size_; ++rank) {
    if (CountOf(s, rank) == 0) continue;
    calls_.calls.push_back({Kind::kBroadcast, rank, first(rank), first(rank),
                            CountOf(s, rank) * RowBytes(s)});
  }
}

CopyOperation GpuRows::copy_operation() const {
  return {batch_->dtype, batch_->wire_dtype, batch_->prescale};
}

}  // namespace hvd
