// SPDX-License-Identifier: Apache-2.0
// Cuts a batch into pieces; copies between segments and staging memory.
#include "transport/batch_work.h"

#include <cstring>
#include <string>
#include <utility>

#include "core/elementwise.h"
#include "transport/stream_copy.h"

namespace hvd {
namespace {

// Elements that are packed, reduced and unpacked at a time: they stay in the
// first-level cache between one and the other.
constexpr int64_t kReduceChunk = 2048;
// Outputs of a batch beyond this do not stay in a core's cache until they are
// read.
constexpr int64_t kStreamedBytes = 8 << 20;

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

// In two levels the sum of a host crosses the wire: where that has few bits it
// must not overflow before it is divided.
bool AveragesEarly(const Batch& batch) {
  return batch.reduce_op == ReduceOp::kAverage &&
         IsFloating(batch.wire_dtype) && SizeOf(batch.wire_dtype) == 2;
}

Status CheckCounts(const Batch& batch, int rank, int size) {
  if (batch.counts.size() != batch.segments.size()) {
    return Internal(
        "an allgather batch has " + std::to_string(batch.segments.size()) +
        " segments but counts of " + std::to_string(batch.counts.size()) + ".");
  }
  for (size_t i = 0; i < batch.counts.size(); ++i) {
    const std::vector<int64_t>& counts = batch.counts[i];
    const bool fits = counts.size() == static_cast<size_t>(size) &&
                      counts[rank] == batch.segments[i].count &&
                      std::all_of(counts.begin(), counts.end(),
                                  [](int64_t count) { return count >= 0; });
    if (!fits) {
      return Internal("the counts of segment " + std::to_string(i) +
                      " of an allgather batch make no sense.");
    }
  }
  return Status::Ok();
}

Status CheckReduction(const Batch& batch) {
  if (!IsValid(batch.reduce_op)) {
    return InvalidArgument("allreduce does not know the reduce op " +
                           std::to_string(static_cast<int>(batch.reduce_op)) +
                           ".");
  }
  if (batch.dtype == DataType::kBool) {
    return InvalidArgument(
        "allreduce is not defined for bool; cast the tensor to an integer.");
  }
  if (batch.wire_dtype != batch.dtype &&
      !(IsFloating(batch.dtype) && IsFloating(batch.wire_dtype))) {
    return InvalidArgument(std::string("allreduce cannot send ") +
                           Name(batch.dtype) + " as " + Name(batch.wire_dtype) +
                           "; only floating point is compressed.");
  }
  return Status::Ok();
}

}  // namespace

SegmentMap::SegmentMap(const std::vector<int64_t>& counts) {
  int64_t end = 0;
  ends_.reserve(counts.size());
  for (int64_t count : counts) ends_.push_back(end += count);
}

BatchWork::BatchWork(Batch batch, uint64_t sequence, int64_t piece_bytes,
                     Wire* wire)
    : batch_(std::move(batch)), sequence_(sequence), wire_(wire) {
  const bool reduces = batch_.verb == Verb::kAllreduce;
  element_bytes_ =
      static_cast<int64_t>(SizeOf(reduces ? batch_.wire_dtype : batch_.dtype));
  if (batch_.verb == Verb::kAllgather) {
    const int64_t share =
        std::max(piece_bytes / size(), kSmallestGatherPieceBytes);
    piece_bytes = std::min(piece_bytes, share);
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
  streams_ =
      elements * static_cast<int64_t>(SizeOf(batch_.dtype)) >= kStreamedBytes;
  piece_elements_ =
      std::max(kAlignedElements, piece_bytes / element_bytes_ /
                                     kAlignedElements * kAlignedElements);
  for (const SegmentMap& map : maps_) {
    const int64_t pieces =
        RoundUp(map.total(), piece_elements_) / piece_elements_;
    piece_count_ = std::max({piece_count_, pieces, int64_t{1}});
  }
}

void BatchWork::Fail(Poison poison) {
  if (!is_ghost()) poison_ = poison;
}

void BatchWork::Pack(int64_t begin, int64_t end, std::byte* out) const {
  const bool reduces = batch_.verb == Verb::kAllreduce;
  const int64_t in_bytes = static_cast<int64_t>(SizeOf(batch_.dtype));
  map(rank()).ForRange(
      begin, end,
      [&](size_t segment, int64_t first, int64_t count, int64_t done) {
        const std::byte* in = At(batch_.segments[segment].in, first * in_bytes);
        std::byte* to = out + done * element_bytes_;
        if (reduces) {
          hvd::Pack(batch_.dtype, batch_.wire_dtype, in, to, count,
                    batch_.prescale);
        } else {
          std::memcpy(to, in, static_cast<size_t>(count * in_bytes));
        }
      });
}

void BatchWork::Unpack(int rank, int64_t begin, int64_t end,
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
  if (streams_ && segment.in != segment.out) {
    StreamCopy(out, from, bytes);
  } else {
    std::memcpy(out, from, bytes);
  }
}

const std::byte* BatchWork::Input(const Segment& segment, int64_t first,
                                  int64_t count, std::byte* space) const {
  const std::byte* const in =
      At(segment.in, first * static_cast<int64_t>(SizeOf(batch_.dtype)));
  if (batch_.dtype == batch_.wire_dtype && batch_.prescale == 1.0) return in;
  hvd::Pack(batch_.dtype, batch_.wire_dtype, in, space, count, batch_.prescale);
  return space;
}

void BatchWork::Reduce(int64_t begin, int64_t end,
                       const std::vector<const std::byte*>& blocks,
                       std::byte* result) {
  const auto bytes = static_cast<int64_t>(SizeOf(batch_.dtype));
  const bool is_cast = batch_.dtype != batch_.wire_dtype;
  alignas(64) std::byte packed[kReduceChunk * sizeof(double)];
  alignas(64) std::byte reduced[kReduceChunk * sizeof(double)];
  std::vector<const void*> parts(blocks.size());
  const auto reduce = [&](const Segment& segment, int64_t first, int64_t offset,
                          int64_t count) {
    std::byte* const out = At(segment.out, first * bytes);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      parts[peer] = blocks[peer] + offset * element_bytes_;
    }
    parts[rank()] = Input(segment, first, count, packed);
    std::byte* const to = result != nullptr ? result + offset * element_bytes_
                          : is_cast         ? reduced
                                            : out;
    ReduceBlocks(batch_.wire_dtype, batch_.reduce_op, parts, to, count,
                 batch_.postscale);
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
        for (int64_t at = 0; at < count; at += kReduceChunk) {
          reduce(of, first + at, done + at, std::min(kReduceChunk, count - at));
        }
      });
}

void BatchWork::ReduceWithinHost(int64_t begin, int64_t end,
                                 const std::vector<const std::byte*>& blocks,
                                 int own_place, std::byte* partial) const {
  alignas(64) std::byte packed[kReduceChunk * sizeof(double)];
  std::vector<const void*> parts(blocks.size());
  const ReduceOp op = AveragesEarly(batch_) ? ReduceOp::kAverage
                      : batch_.reduce_op == ReduceOp::kAverage
                          ? ReduceOp::kSum
                          : batch_.reduce_op;
  map(rank()).ForRange(
      begin, end,
      [&](size_t segment, int64_t first, int64_t count, int64_t done) {
        for (int64_t at = 0; at < count; at += kReduceChunk) {
          const int64_t length = std::min(kReduceChunk, count - at);
          const int64_t offset = (done + at) * element_bytes_;
          for (size_t place = 0; place < blocks.size(); ++place) {
            // This rank's own is null.
            if (blocks[place] != nullptr) parts[place] = blocks[place] + offset;
          }
          parts[own_place] =
              Input(batch_.segments[segment], first + at, length, packed);
          ReduceBlocks(batch_.wire_dtype, op, parts, partial + offset, length,
                       1.0, BestVectorUnit(), size());
        }
      });
}

void BatchWork::ReduceAcrossHosts(int64_t count,
                                  const std::vector<const std::byte*>& partials,
                                  std::byte* result) const {
  const std::vector<const void*> parts(partials.begin(), partials.end());
  const ReduceOp op = AveragesEarly(batch_) ? ReduceOp::kSum : batch_.reduce_op;
  ReduceBlocks(batch_.wire_dtype, op, parts, result, count, batch_.postscale,
               BestVectorUnit(), size());
}

Status CheckBatch(const Batch& batch, int rank, int size) {
  for (const Segment& segment : batch.segments) {
    if (segment.count < 0) return Internal("a segment has a negative count.");
  }
  switch (batch.verb) {
    case Verb::kAllreduce:
      return CheckReduction(batch);
    case Verb::kAllgather:
      return CheckCounts(batch, rank, size);
    case Verb::kBroadcast:
      if (batch.root >= 0 && batch.root < size) return Status::Ok();
      return InvalidArgument("broadcast has the root " +
                             std::to_string(batch.root) +
                             "; the ranks of the process set are 0 to " +
                             std::to_string(size - 1) + ".");
  }
  return Internal("a batch has an unknown verb.");
}

}  // namespace hvd
