// SPDX-License-Identifier: Apache-2.0
// Places tensors in the buffer, at boundaries that suit a GPU's accesses.
#include "transport/device/gpu_fusion.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace hvd {
namespace {

constexpr int64_t kAlignment = 64;

int64_t PlaceBytes(const Batch& batch, const Segment& segment) {
  const int64_t bytes =
      segment.count * static_cast<int64_t>(SizeOf(batch.wire_dtype));
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// The part of the divisor that inputs are divided by before the sum. A sum of
// float16 may be too large for it where the average is not, and a small input
// nothing once it is divided. So half of it goes before, and half behind. A
// power of two changes no bits of what is neither.
double EarlyDivisor(const Batch& batch, double divisor) {
  if (batch.wire_dtype != DataType::kFloat16) return 1.0;
  return std::exp2(std::ceil(std::log2(divisor) / 2));
}

}  // namespace

bool IsFused(const Batch& batch, int size) {
  const auto tensors =
      std::count_if(batch.segments.begin(), batch.segments.end(),
                    [](const Segment& segment) { return segment.count > 0; });
  return batch.verb == Verb::kAllreduce &&
         (tensors > 1 || (tensors == 1 && (batch.wire_dtype != batch.dtype ||
                                           IsScaled(batch, size))));
}

int64_t FusionBytes(const Batch& batch, int shards) {
  int64_t bytes = 0;
  for (const Segment& segment : batch.segments) {
    bytes += PlaceBytes(batch, segment);
  }
  const int64_t step = kAlignment * shards;
  return (bytes + step - 1) / step * step;
}

GpuFusion FuseInto(void* buffer, const Batch& batch, int size) {
  GpuFusion fusion;
  const double divisor = DivisorOf(batch, size);
  const double early = EarlyDivisor(batch, divisor);
  fusion.pack = {batch.dtype, batch.wire_dtype, batch.prescale / early};
  fusion.unpack = {batch.wire_dtype, batch.dtype,
                   batch.postscale * early / divisor};
  auto* place = static_cast<std::byte*>(buffer);
  for (const Segment& segment : batch.segments) {
    if (segment.count == 0) continue;
    fusion.in.push_back({segment.in, place, segment.count});
    if (segment.out != nullptr) {
      fusion.out.push_back({place, segment.out, segment.count});
    }
    place += PlaceBytes(batch, segment);
  }
  fusion.calls.dtype = batch.wire_dtype;
  fusion.calls.op = batch.reduce_op;
  const int64_t elements =
      FusionBytes(batch) / static_cast<int64_t>(SizeOf(batch.wire_dtype));
  fusion.calls.calls = {
      {CommunicatorCall::Kind::kAllreduce, 0, buffer, buffer, elements}};
  return fusion;
}

GpuShard ShardIn(void* buffer, const Batch& batch, int shard, int shards) {
  using Kind = CommunicatorCall::Kind;
  GpuShard in;
  in.bytes = FusionBytes(batch, shards) / shards;
  in.count = in.bytes / static_cast<int64_t>(SizeOf(batch.wire_dtype));
  in.begin = static_cast<std::byte*>(buffer) + shard * in.bytes;
  in.scatter.dtype = batch.wire_dtype;
  in.scatter.op = batch.reduce_op;
  in.scatter.calls = {{Kind::kReducescatter, 0, buffer, in.begin, in.count}};
  in.gather.dtype = DataType::kUint8;
  in.gather.calls = {{Kind::kAllgather, 0, in.begin, buffer, in.bytes}};
  return in;
}

}  // namespace hvd
