// SPDX-License-Identifier: Apache-2.0
// Cuts at elements where a verb treats each by itself, else between segments.
#include "transport/device/staging_pieces.h"

#include <algorithm>
#include <type_traits>

namespace hvd {
namespace {

// Parts begin at multiples of it, so that they are aligned as segments are.
constexpr int64_t kPartAlignment = 64;

// Ranks cut alike, so what differs between them cannot be cut.
bool CanBeCut(const Batch& batch) {
  if (!batch.partners.empty()) return false;
  return batch.verb == Verb::kAllreduce || batch.verb == Verb::kBroadcast ||
         batch.verb == Verb::kReducescatter;
}

// Whether a segment's elements may be in two pieces.
bool CanCutSegments(const Batch& batch) {
  return batch.verb == Verb::kBroadcast ||
         (batch.verb == Verb::kAllreduce &&
          batch.reduce_op != ReduceOp::kAdasum);
}

// The segments of a call, one or several, are in one piece. Errors count them.
// Returns where the next call begins.
size_t EndOfCall(const Batch& batch, size_t begin) {
  const std::vector<Segment>& segments = batch.segments;
  size_t end = begin + 1;
  while (segments[begin].name != nullptr && end < segments.size() &&
         segments[end].name == segments[begin].name) {
    ++end;
  }
  return end;
}

template <typename T>
T* Moved(T* place, int64_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return place == nullptr ? nullptr : static_cast<Byte*>(place) + bytes;
}

}  // namespace

std::vector<std::vector<SegmentPart>> CutIntoPieces(const Batch& batch,
                                                    int64_t least_bytes) {
  int64_t total = 0;
  for (const Segment& segment : batch.segments) total += segment.count;
  const auto element_bytes = static_cast<int64_t>(SizeOf(batch.dtype));
  const int64_t count = CanBeCut(batch)
                            ? std::clamp(total * element_bytes / least_bytes,
                                         int64_t{1}, kMostPieces)
                            : 1;
  const int64_t share =
      (total / count + kPartAlignment) / kPartAlignment * kPartAlignment;
  std::vector<std::vector<SegmentPart>> pieces(1);
  int64_t room = share;
  for (size_t i = 0; i < batch.segments.size();) {
    const size_t end = EndOfCall(batch, i);
    std::vector<SegmentPart> call;
    int64_t elements = 0;
    for (; i < end; ++i) {
      call.push_back({i, 0, batch.segments[i].count});
      elements += batch.segments[i].count;
    }
    SegmentPart& rest = call.back();
    while (count > 1 && call.size() == 1 && CanCutSegments(batch) &&
           rest.count > room) {
      // What is left of a piece may be too little to be worth a copy.
      const int64_t cut =
          room < share / 8 ? 0 : room / kPartAlignment * kPartAlignment;
      if (cut > 0) pieces.back().push_back({rest.segment, rest.begin, cut});
      rest.begin += cut;
      rest.count -= cut;
      pieces.emplace_back();
      room = share;
      elements = rest.count;
    }
    if (elements > room && !pieces.back().empty()) {
      pieces.emplace_back();
      room = share;
    }
    pieces.back().insert(pieces.back().end(), call.begin(), call.end());
    room -= elements;
  }
  return pieces;
}

Segment PartOf(const Batch& batch, const SegmentPart& part) {
  Segment segment = batch.segments[part.segment];
  if (part.count == segment.count) return segment;
  const int64_t bytes = part.begin * static_cast<int64_t>(SizeOf(batch.dtype));
  segment.in = Moved(segment.in, bytes);
  segment.out = Moved(segment.out, bytes);
  segment.count = segment.rows = part.count;
  segment.row_count = 1;
  return segment;
}

}  // namespace hvd
