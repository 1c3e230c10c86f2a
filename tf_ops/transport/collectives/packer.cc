// SPDX-License-Identifier: Apache-2.0
// Copies, scales and casts between segments and staging memory.
#include "transport/collectives/packer.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "cpu/elementwise.h"
#include "cpu/finite.h"
#include "cpu/non_temporal_copy.h"

namespace hvd {
namespace {

// The outputs of a larger batch do not stay in a core's cache until they are
// read.
constexpr int64_t kNonTemporalBytes = 8 << 20;
// Batches of this size are worth several threads.
constexpr int64_t kLargeBytes = 1 << 20;

const std::byte* At(const void* data, int64_t bytes) {
  return static_cast<const std::byte*>(data) + bytes;
}
// What is null stays so.
std::byte* At(void* data, int64_t bytes) {
  return data == nullptr ? nullptr : static_cast<std::byte*>(data) + bytes;
}

}  // namespace

Operands ReducedOperands(const Batch& batch) {
  Operands operands = MovedOperands(batch);
  operands.wire_dtype = batch.wire_dtype;
  operands.reduce_op = batch.reduce_op;
  operands.divisor = batch.divisor;
  operands.prescale = batch.prescale;
  operands.postscale = batch.postscale;
  operands.check_finite = batch.check_finite;
  return operands;
}

Operands MovedOperands(const Batch& batch) {
  Operands operands;
  operands.segments = batch.segments;
  operands.dtype = operands.wire_dtype = batch.dtype;
  return operands;
}

std::vector<int64_t> CountsOf(const std::vector<Segment>& segments) {
  std::vector<int64_t> counts;
  counts.reserve(segments.size());
  for (const Segment& segment : segments) counts.push_back(segment.count);
  return counts;
}

int64_t BytesOf(const Operands& operands) {
  int64_t count = 0;
  for (const Segment& segment : operands.segments) count += segment.count;
  return count * static_cast<int64_t>(SizeOf(operands.dtype));
}

Packer::Packer(Operands operands, StoreChoice* choice, int64_t bytes)
    : operands_(std::move(operands)),
      store_choice_(choice),
      element_bytes_(static_cast<int64_t>(SizeOf(operands_.wire_dtype))),
      non_temporal_outputs_(bytes >= kNonTemporalBytes),
      is_large_(bytes >= kLargeBytes) {}

void Packer::Check(const Segment& segment, const std::byte* packed,
                   int64_t count) const {
  if (!operands_.check_finite ||
      AllFinite(operands_.wire_dtype, packed, count)) {
    return;
  }
  int none = -1;  // the first one found stays
  not_finite_.compare_exchange_strong(
      none, static_cast<int>(&segment - operands_.segments.data()),
      std::memory_order_relaxed);
}

void Packer::Pack(const SegmentMap& map, int64_t begin, int64_t end,
                  std::byte* out) const {
  const CopyTimer timer(times_, &BatchTimes::copy_in_ns);
  const auto pack = [&](bool non_temporal) {
    Share(begin, end, [&](int64_t from, int64_t to) {
      PackRange(map, from, to, out + (from - begin) * element_bytes_,
                non_temporal);
    });
  };
  if (store_choice_ == nullptr) return pack(false);
  using Clock = std::chrono::steady_clock;
  const auto bytes = static_cast<size_t>((end - begin) * element_bytes_);
  const bool non_temporal = store_choice_->Next(bytes);
  const Clock::time_point start = Clock::now();
  pack(non_temporal);
  store_choice_->Took(
      bytes, non_temporal,
      std::chrono::duration<double>(Clock::now() - start).count());
}

void Packer::PackRange(const SegmentMap& map, int64_t begin, int64_t end,
                       std::byte* out, bool non_temporal) const {
  map.ForRange(
      begin, end,
      [&](size_t segment, int64_t first, int64_t count, int64_t done) {
        const Segment& of = operands_.segments[segment];
        std::byte* to = out + done * element_bytes_;
        if (non_temporal) return PackNonTemporal(of, first, count, to);
        // What has been checked must still be in the cache.
        const int64_t tile = operands_.check_finite ? kTileElements : count;
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

void Packer::Unpack(const SegmentMap& map, int64_t begin, int64_t end,
                    const std::byte* in) const {
  const CopyTimer timer(times_, &BatchTimes::copy_out_ns);
  Share(begin, end, [&](int64_t from, int64_t to) {
    UnpackRange(map, from, to, in + (from - begin) * element_bytes_);
  });
}

void Packer::UnpackRange(const SegmentMap& map, int64_t begin, int64_t end,
                         const std::byte* in) const {
  const auto out_bytes = static_cast<int64_t>(SizeOf(operands_.dtype));
  map.ForRange(begin, end,
               [&](size_t segment, int64_t first, int64_t count, int64_t done) {
                 const Segment& of = operands_.segments[segment];
                 std::byte* const out = At(of.out, first * out_bytes);
                 if (out == nullptr) return;
                 const std::byte* from = in + done * element_bytes_;
                 if (operands_.dtype != operands_.wire_dtype) {
                   hvd::Unpack(operands_.wire_dtype, operands_.dtype, from, out,
                               count);
                 } else {
                   Copy(of, from, out, static_cast<size_t>(count * out_bytes));
                 }
               });
}

void Packer::CopyOwn(const SegmentMap& from, const SegmentMap& to,
                     int64_t begin, int64_t end) const {
  const CopyTimer timer(times_, &BatchTimes::copy_out_ns);
  // Both visit the same runs, so the second follows the first.
  struct Run {
    size_t segment;
    int64_t first, count;
  };
  std::vector<Run> runs;
  from.ForRange(begin, end,
                [&](size_t segment, int64_t first, int64_t count, int64_t) {
                  runs.push_back({segment, first, count});
                });
  size_t next = 0;
  to.ForRange(begin, end, [&](size_t, int64_t first, int64_t, int64_t) {
    const Run& run = runs[next++];
    const Segment& of = operands_.segments[run.segment];
    const auto bytes = static_cast<int64_t>(SizeOf(operands_.dtype));
    std::byte* const out = At(of.out, first * bytes);
    if (out == nullptr) return;
    if (!SendsUnchanged(of) || operands_.check_finite) {
      return CopyChanged(of, run.first, run.count, out);
    }
    const std::byte* const source = At(of.in, run.first * bytes);
    if (source == out) return;
    Copy(of, source, out, static_cast<size_t>(run.count * element_bytes_));
  });
}

void Packer::CopyChanged(const Segment& segment, int64_t first, int64_t count,
                         std::byte* out) const {
  alignas(64) std::byte packed[kTileElements * sizeof(double)];
  const auto bytes = static_cast<int64_t>(SizeOf(operands_.dtype));
  for (int64_t at = 0; at < count; at += kTileElements) {
    const int64_t length = std::min(kTileElements, count - at);
    hvd::Unpack(operands_.wire_dtype, operands_.dtype,
                Input(segment, first + at, length, packed), out + at * bytes,
                length);
  }
}

void Packer::Copy(const Segment& segment, const std::byte* from, std::byte* out,
                  size_t bytes) const {
  if (out == nullptr) return;
  // In place an allreduce has the lines of the output in the cache since it
  // read them.
  if (non_temporal_outputs_ && segment.in != segment.out) {
    NonTemporalCopy(out, from, bytes);
  } else {
    std::memcpy(out, from, bytes);
  }
}

const std::byte* Packer::Input(const Segment& segment, int64_t first,
                               int64_t count, std::byte* space) const {
  if (segment.in == nullptr) {
    FillIdentity(operands_.wire_dtype, operands_.reduce_op, space, count);
    return space;
  }
  const std::byte* const in =
      At(segment.in, first * static_cast<int64_t>(SizeOf(operands_.dtype)));
  const bool unchanged = SendsUnchanged(segment);
  if (!unchanged) {
    hvd::Pack(operands_.dtype, operands_.wire_dtype, in, space, count,
              operands_.prescale);
  }
  const std::byte* const packed = unchanged ? in : space;
  Check(segment, packed, count);
  return packed;
}

bool Packer::SendsUnchanged(const Segment& segment) const {
  return segment.in != nullptr && operands_.dtype == operands_.wire_dtype &&
         operands_.prescale == 1.0;
}

void Packer::PackNonTemporal(const Segment& segment, int64_t first,
                             int64_t count, std::byte* out) const {
  alignas(64) std::byte packed[kTileElements * sizeof(double)];
  const bool at_once = SendsUnchanged(segment) && !operands_.check_finite;
  const int64_t tile = at_once ? count : kTileElements;
  for (int64_t at = 0; at < count; at += tile) {
    const int64_t length = std::min(tile, count - at);
    NonTemporalCopy(out + at * element_bytes_,
                    Input(segment, first + at, length, packed),
                    static_cast<size_t>(length * element_bytes_));
  }
}

}  // namespace hvd
