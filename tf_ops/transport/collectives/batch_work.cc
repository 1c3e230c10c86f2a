// SPDX-License-Identifier: Apache-2.0
// Cuts a batch into chunks; copies between segments and staging memory.
#include "transport/collectives/batch_work.h"

#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "cpu/finite.h"
#include "cpu/non_temporal_copy.h"

namespace hvd {
namespace {

// Elements that are packed, reduced and unpacked at a time. They stay in the
// first-level cache between these steps.
constexpr int64_t kTileElements = 2048;
// The outputs of a larger batch do not stay in a core's cache until they are
// read.
constexpr int64_t kNonTemporalBytes = 8 << 20;
// Batches of this size are worth several threads, which take this much at once.
constexpr int64_t kLargeBytes = 1 << 20;
constexpr int64_t kSharedBytes = 64 << 10;

std::vector<int64_t> CountsOf(const std::vector<Segment>& segments) {
  std::vector<int64_t> counts;
  for (const Segment& segment : segments) counts.push_back(segment.count);
  return counts;
}

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

const std::byte* At(const void* data, int64_t bytes) {
  return static_cast<const std::byte*>(data) + bytes;
}
std::byte* At(void* data, int64_t bytes) {
  return static_cast<std::byte*>(data) + bytes;
}

// What is null stays so.
std::vector<const std::byte*> Advanced(std::vector<const std::byte*> blocks,
                                       int64_t bytes) {
  for (const std::byte*& block : blocks) {
    if (block != nullptr) block += bytes;
  }
  return blocks;
}

// In two levels the sum of a host crosses the wire. In half precision it might
// overflow. So each host sends its average instead. That has the range and the
// precision of the ranks' values.
bool AveragesEarly(const Batch& batch) {
  return batch.reduce_op == ReduceOp::kAverage &&
         IsFloating(batch.wire_dtype) && SizeOf(batch.wire_dtype) == 2;
}

// What the hosts' partials stand for in an average.
Averaged AveragedOverHosts(const Batch& batch, const HostMap& hosts) {
  Averaged averaged;
  averaged.ranks = static_cast<int64_t>(hosts.host.size());
  if (!AveragesEarly(batch)) return averaged;
  // A host's average counts for as many as the host has ranks. Multiplied by
  // that, half precision is exact in float32.
  for (const std::vector<int>& ranks : hosts.ranks) {
    averaged.weights.push_back(static_cast<int64_t>(ranks.size()));
  }
  const int64_t first = averaged.weights.front();
  if (std::count(averaged.weights.begin(), averaged.weights.end(), first) ==
      hosts.host_count()) {
    averaged.ranks = hosts.host_count();
    averaged.weights.clear();
  }
  return averaged;
}

}  // namespace

SegmentMap::SegmentMap(const std::vector<int64_t>& counts) {
  int64_t end = 0;
  ends_.reserve(counts.size());
  for (int64_t count : counts) ends_.push_back(end += count);
}

BatchWork::BatchWork(Batch batch, uint64_t sequence, int64_t chunk_bytes,
                     Wire* wire)
    : batch_(std::move(batch)), sequence_(sequence), wire_(wire) {
  const bool reduces = batch_.verb == Verb::kAllreduce;
  if (reduces && wire->hosts().has_two_levels()) {
    // A host's sum of integers must not wrap around on its way.
    if (batch_.reduce_op == ReduceOp::kAverage && !IsFloating(batch_.dtype)) {
      batch_.wire_dtype = AveragingType(batch_.dtype);
    }
    hosts_averaged_ = AveragedOverHosts(batch_, wire->hosts());
  }
  element_bytes_ =
      static_cast<int64_t>(SizeOf(reduces ? batch_.wire_dtype : batch_.dtype));
  if (batch_.verb == Verb::kAllgather) {
    const int64_t share =
        std::max(chunk_bytes / size(), kSmallestGatherChunkBytes);
    chunk_bytes = std::min(chunk_bytes, share);
    offsets_.assign(batch_.segments.size(), {});
    for (size_t i = 0; i < batch_.segments.size(); ++i) {
      int64_t offset = 0;
      for (int64_t count : batch_.counts[i]) {
        offsets_[i].push_back(offset);
        offset += count;
      }
    }
    for (int peer = 0; peer < size(); ++peer) {
      std::vector<int64_t> counts;
      for (const auto& of_segment : batch_.counts) {
        counts.push_back(of_segment[peer]);
      }
      maps_.emplace_back(counts);
    }
  } else {
    maps_.emplace_back(CountsOf(batch_.segments));
  }
  int64_t elements = 0;
  for (const SegmentMap& map : maps_) elements += map.total();
  const int64_t bytes = elements * static_cast<int64_t>(SizeOf(batch_.dtype));
  non_temporal_outputs_ = bytes >= kNonTemporalBytes;
  is_large_ = bytes >= kLargeBytes;
  chunk_elements_ =
      std::max(kAlignedElements, chunk_bytes / element_bytes_ /
                                     kAlignedElements * kAlignedElements);
  for (const SegmentMap& map : maps_) {
    const int64_t chunks =
        RoundUp(map.total(), chunk_elements_) / chunk_elements_;
    chunk_count_ = std::max({chunk_count_, chunks, int64_t{1}});
  }
}

void BatchWork::Fail(Poison poison) {
  if (!is_detached()) poison_ = poison;
}

const Poison& BatchWork::FailIfNotFinite() {
  const int segment = not_finite_.load(std::memory_order_relaxed);
  if (segment >= 0) Fail({StatusCode::kInvalidArgument, rank(), segment});
  return poison_;
}

void BatchWork::Check(const Segment& segment, const std::byte* packed,
                      int64_t count) const {
  if (!batch_.check_finite || batch_.verb != Verb::kAllreduce) return;
  if (AllFinite(batch_.wire_dtype, packed, count)) return;
  int none = -1;  // the first one found stays
  not_finite_.compare_exchange_strong(
      none, static_cast<int>(&segment - batch_.segments.data()),
      std::memory_order_relaxed);
}

template <typename Work>
void BatchWork::Share(int64_t begin, int64_t end, const Work& work) const {
  const int64_t step = RoundUp(
      std::max(kSharedBytes / element_bytes_, int64_t{1}), kAlignedElements);
  if (threads_ == nullptr || end - begin <= step) return work(begin, end);
  threads_->Run(RoundUp(end - begin, step) / step, [&](int64_t part) {
    const int64_t from = begin + part * step;
    work(from, std::min(from + step, end));
  });
}

void BatchWork::Pack(int64_t begin, int64_t end, std::byte* out) const {
  const auto pack = [&](bool non_temporal) {
    Share(begin, end, [&](int64_t from, int64_t to) {
      PackRange(from, to, out + (from - begin) * element_bytes_, non_temporal);
    });
  };
  StoreChoice* const choice = wire_->store_choice();
  if (choice == nullptr) return pack(false);
  using Clock = std::chrono::steady_clock;
  const auto bytes = static_cast<size_t>((end - begin) * element_bytes_);
  const bool non_temporal = choice->Next(bytes);
  const Clock::time_point start = Clock::now();
  pack(non_temporal);
  choice->Took(bytes, non_temporal,
               std::chrono::duration<double>(Clock::now() - start).count());
}

void BatchWork::PackRange(int64_t begin, int64_t end, std::byte* out,
                          bool non_temporal) const {
  map(rank()).ForRange(
      begin, end,
      [&](size_t segment, int64_t first, int64_t count, int64_t done) {
        const Segment& of = batch_.segments[segment];
        std::byte* to = out + done * element_bytes_;
        if (non_temporal) return PackNonTemporal(of, first, count, to);
        // What has been checked must still be in the cache.
        const int64_t tile = batch_.check_finite ? kTileElements : count;
        for (int64_t at = 0; at < count; at += tile) {
          const int64_t length = std::min(tile, count - at);
          std::byte* const packed = to + at * element_bytes_;
          const std::byte* const input = Input(of, first + at, length, packed);
          if (input == packed) continue;
          std::memcpy(packed, input,
                      static_cast<size_t>(length * element_bytes_));
        }
      });
}

void BatchWork::Unpack(int rank, int64_t begin, int64_t end,
                       const std::byte* in) {
  Share(begin, end, [&](int64_t from, int64_t to) {
    UnpackRange(rank, from, to, in + (from - begin) * element_bytes_);
  });
}

void BatchWork::UnpackRange(int rank, int64_t begin, int64_t end,
                            const std::byte* in) {
  const bool reduces = batch_.verb == Verb::kAllreduce;
  const int64_t out_bytes = static_cast<int64_t>(SizeOf(batch_.dtype));
  map(rank).ForRange(
      begin, end,
      [&](size_t segment, int64_t first, int64_t count, int64_t done) {
        if (!offsets_.empty()) first += offsets_[segment][rank];
        const Segment& of = batch_.segments[segment];
        std::byte* out = At(of.out, first * out_bytes);
        const std::byte* from = in + done * element_bytes_;
        if (reduces && batch_.dtype != batch_.wire_dtype) {
          hvd::Unpack(batch_.wire_dtype, batch_.dtype, from, out, count);
        } else {
          Copy(of, from, out, static_cast<size_t>(count * out_bytes));
        }
      });
}

void BatchWork::KeepOwn(int64_t begin, int64_t end) {
  map(rank()).ForRange(
      begin, end, [&](size_t segment, int64_t first, int64_t count, int64_t) {
        const Segment& of = batch_.segments[segment];
        if (of.in == of.out) return;
        const int64_t bytes = first * element_bytes_;
        Copy(of, At(of.in, bytes), At(of.out, bytes),
             static_cast<size_t>(count * element_bytes_));
      });
}

void BatchWork::Copy(const Segment& segment, const std::byte* from,
                     std::byte* out, size_t bytes) const {
  // In place an allreduce has the lines of the output in the cache since it
  // read them.
  if (non_temporal_outputs_ && segment.in != segment.out) {
    NonTemporalCopy(out, from, bytes);
  } else {
    std::memcpy(out, from, bytes);
  }
}

const std::byte* BatchWork::Input(const Segment& segment, int64_t first,
                                  int64_t count, std::byte* space) const {
  const std::byte* const in =
      At(segment.in, first * static_cast<int64_t>(SizeOf(batch_.dtype)));
  if (!SendsUnchanged()) {
    hvd::Pack(batch_.dtype, batch_.wire_dtype, in, space, count,
              batch_.prescale);
  }
  const std::byte* const packed = SendsUnchanged() ? in : space;
  Check(segment, packed, count);
  return packed;
}

bool BatchWork::SendsUnchanged() const {
  return batch_.verb != Verb::kAllreduce ||
         (batch_.dtype == batch_.wire_dtype && batch_.prescale == 1.0);
}

void BatchWork::PackNonTemporal(const Segment& segment, int64_t first,
                                int64_t count, std::byte* out) const {
  alignas(64) std::byte packed[kTileElements * sizeof(double)];
  const bool at_once = SendsUnchanged() && !batch_.check_finite;
  const int64_t tile = at_once ? count : kTileElements;
  for (int64_t at = 0; at < count; at += tile) {
    const int64_t length = std::min(tile, count - at);
    NonTemporalCopy(out + at * element_bytes_,
                    Input(segment, first + at, length, packed),
                    static_cast<size_t>(length * element_bytes_));
  }
}

void BatchWork::Reduce(int64_t begin, int64_t end,
                       const std::vector<const std::byte*>& blocks,
                       std::byte* result) {
  StoreChoice* const choice = wire_->store_choice();
  const bool non_temporal =
      result != nullptr && choice != nullptr &&
      choice->NonTemporal(static_cast<size_t>((end - begin) * element_bytes_));
  Share(begin, end, [&](int64_t from, int64_t to) {
    const int64_t offset = (from - begin) * element_bytes_;
    ReduceRange(from, to, Advanced(blocks, offset),
                result == nullptr ? nullptr : result + offset, non_temporal);
  });
}

void BatchWork::ReduceRange(int64_t begin, int64_t end,
                            const std::vector<const std::byte*>& blocks,
                            std::byte* result, bool non_temporal) {
  const auto bytes = static_cast<int64_t>(SizeOf(batch_.dtype));
  const bool is_cast = batch_.dtype != batch_.wire_dtype;
  alignas(64) std::byte packed[kTileElements * sizeof(double)];
  alignas(64) std::byte reduced[kTileElements * sizeof(double)];
  std::vector<const void*> parts(blocks.size());
  const auto reduce = [&](const Segment& segment, int64_t first, int64_t offset,
                          int64_t count) {
    std::byte* const out = At(segment.out, first * bytes);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      parts[peer] = blocks[peer] + offset * element_bytes_;
    }
    parts[rank()] = Input(segment, first, count, packed);
    std::byte* const sent =
        result == nullptr ? nullptr : result + offset * element_bytes_;
    std::byte* const to = non_temporal      ? reduced
                          : sent != nullptr ? sent
                          : is_cast         ? reduced
                                            : out;
    ReduceBlocks(batch_.wire_dtype, batch_.reduce_op, parts, to, count,
                 batch_.postscale);
    if (non_temporal) {
      NonTemporalCopy(sent, to, static_cast<size_t>(count * element_bytes_));
    }
    if (is_cast) {
      hvd::Unpack(batch_.wire_dtype, batch_.dtype, to, out, count);
    } else if (to != out) {
      Copy(segment, to, out, static_cast<size_t>(count * bytes));
    }
  };
  map(rank()).ForRange(
      begin, end,
      [&](size_t segment, int64_t first, int64_t count, int64_t done) {
        const Segment& of = batch_.segments[segment];
        for (int64_t at = 0; at < count; at += kTileElements) {
          reduce(of, first + at, done + at,
                 std::min(kTileElements, count - at));
        }
      });
}

void BatchWork::ReduceWithinHost(int64_t begin, int64_t end,
                                 const std::vector<const std::byte*>& blocks,
                                 int own_place, std::byte* partial) const {
  Share(begin, end, [&](int64_t from, int64_t to) {
    const int64_t offset = (from - begin) * element_bytes_;
    ReduceHostRange(from, to, Advanced(blocks, offset), own_place,
                    partial + offset);
  });
}

void BatchWork::ReduceHostRange(int64_t begin, int64_t end,
                                const std::vector<const std::byte*>& blocks,
                                int own_place, std::byte* partial) const {
  alignas(64) std::byte packed[kTileElements * sizeof(double)];
  const ReduceOp op = AveragesEarly(batch_) ? ReduceOp::kAverage
                      : batch_.reduce_op == ReduceOp::kAverage
                          ? ReduceOp::kSum
                          : batch_.reduce_op;
  const auto reduce = [&](const Segment& segment, int64_t first, int64_t count,
                          int64_t offset) {
    const std::vector<const std::byte*> here = Advanced(blocks, offset);
    std::vector<const void*> parts(here.begin(), here.end());
    parts[own_place] = Input(segment, first, count, packed);
    ReduceBlocks(batch_.wire_dtype, op, parts, partial + offset, count, 1.0);
  };
  map(rank()).ForRange(
      begin, end,
      [&](size_t segment, int64_t first, int64_t count, int64_t done) {
        for (int64_t at = 0; at < count; at += kTileElements) {
          reduce(batch_.segments[segment], first + at,
                 std::min(kTileElements, count - at),
                 (done + at) * element_bytes_);
        }
      });
}

void BatchWork::ReduceAcrossHosts(int64_t count,
                                  const std::vector<const std::byte*>& partials,
                                  std::byte* result) const {
  const std::vector<const void*> parts(partials.begin(), partials.end());
  ReduceBlocks(batch_.wire_dtype, batch_.reduce_op, parts, result, count,
               batch_.postscale, BestVectorUnit(), hosts_averaged_);
}

}  // namespace hvd
