// SPDX-License-Identifier: Apache-2.0
// Reduces tile by tile, out of the peers' blocks and this rank's own input.
#include "transport/collectives/reducer.h"

#include <algorithm>

#include "cpu/non_temporal_copy.h"

namespace hvd {
namespace {

// Elements [begin, end) alone. Blocks that are null stay so.
Contributions PartOf(const Contributions& whole, int64_t begin, int64_t end,
                     int64_t element_bytes) {
  Contributions part = whole;
  part.begin = begin;
  part.end = end;
  for (const std::byte*& block : part.blocks) {
    if (block != nullptr) block += (begin - whole.begin) * element_bytes;
  }
  return part;
}

// In two levels the sum of a host crosses the wire. In half precision it might
// overflow. So each host sends its average instead. That has the range and the
// precision of the ranks' values.
bool AveragesEarly(const Operands& operands) {
  return operands.reduce_op == ReduceOp::kAverage &&
         IsFloating(operands.wire_dtype) && SizeOf(operands.wire_dtype) == 2;
}

// What the hosts' partials stand for in an average.
Averaged AveragedOverHosts(const Operands& operands, const HostMap& hosts) {
  Averaged averaged;
  const auto size = static_cast<int64_t>(hosts.host.size());
  averaged.ranks = operands.divisor > 0 ? operands.divisor : size;
  if (!AveragesEarly(operands)) return averaged;
  // A host's average counts for as many as the host has ranks. Multiplied by
  // that, half precision is exact in float32.
  for (const std::vector<int>& ranks : hosts.ranks) {
    averaged.weights.push_back(static_cast<int64_t>(ranks.size()));
  }
  const int64_t first = averaged.weights.front();
  if (averaged.ranks == size &&
      std::count(averaged.weights.begin(), averaged.weights.end(), first) ==
          hosts.host_count()) {
    averaged.ranks = hosts.host_count();
    averaged.weights.clear();
  }
  return averaged;
}

}  // namespace

Operands ForHosts(Operands operands, const HostMap& hosts) {
  // A host's sum of integers must not wrap around on its way.
  if (hosts.has_two_levels() && operands.reduce_op == ReduceOp::kAverage &&
      !IsFloating(operands.dtype)) {
    operands.wire_dtype = AveragingType(operands.dtype);
  }
  return operands;
}

Reducer::Reducer(const Packer* packer, const HostMap& hosts) : packer_(packer) {
  const Operands& operands = packer->operands();
  of_ranks_ = {operands.wire_dtype, operands.reduce_op, operands.postscale};
  of_ranks_.averaged.ranks = operands.divisor;
  if (!hosts.has_two_levels()) return;
  within_host_ = {operands.wire_dtype, operands.reduce_op};
  if (operands.reduce_op == ReduceOp::kAverage && !AveragesEarly(operands)) {
    within_host_.op = ReduceOp::kSum;
  }
  across_hosts_ = of_ranks_;
  across_hosts_.averaged = AveragedOverHosts(operands, hosts);
}

void Reducer::Reduce(const Contributions& from, const Destination& to) const {
  const CopyTimer timer(packer_->times(), &BatchTimes::reduce_ns);
  const int64_t element_bytes = packer_->element_bytes();
  StoreChoice* const choice = packer_->store_choice();
  const bool non_temporal = to.result != nullptr && choice != nullptr &&
                            choice->NonTemporal(static_cast<size_t>(
                                (from.end - from.begin) * element_bytes));
  packer_->Share(from.begin, from.end, [&](int64_t begin, int64_t end) {
    Destination part = to;
    if (part.result != nullptr) {
      part.result += (begin - from.begin) * element_bytes;
    }
    ReduceRange(PartOf(from, begin, end, element_bytes), part, non_temporal);
  });
}

void Reducer::ReduceRange(const Contributions& from, const Destination& to,
                          bool non_temporal) const {
  const int64_t element_bytes = packer_->element_bytes();
  const Operands& operands = packer_->operands();
  const auto bytes = static_cast<int64_t>(SizeOf(operands.dtype));
  alignas(64) std::byte packed[kTileElements * sizeof(double)];
  std::vector<const void*> inputs(from.blocks.size());
  from.map.ForRange(
      from.begin, from.end,
      [&](size_t segment, int64_t first, int64_t count, int64_t done) {
        // Both maps have the same runs. They differ in where those begin.
        int64_t out_first = first;
        if (&from.map != &to.map) {
          to.map.ForRange(
              from.begin + done, from.begin + done + 1,
              [&](size_t, int64_t at, int64_t, int64_t) { out_first = at; });
        }
        const Segment& of = operands.segments[segment];
        for (int64_t at = 0; at < count; at += kTileElements) {
          Tile tile{of, first + at, std::min(kTileElements, count - at)};
          const int64_t offset = (done + at) * element_bytes;
          for (size_t rank = 0; rank < inputs.size(); ++rank) {
            inputs[rank] =
                static_cast<int>(rank) == from.own_place
                    ? packer_->Input(of, tile.first, tile.count, packed)
                    : from.blocks[rank] + offset;
          }
          if (of.out != nullptr) {
            tile.out =
                static_cast<std::byte*>(of.out) + (out_first + at) * bytes;
          }
          if (to.result != nullptr) tile.result = to.result + offset;
          ReduceTile(tile, inputs, non_temporal);
        }
      });
}

void Reducer::ReduceTile(const Tile& tile,
                         const std::vector<const void*>& inputs,
                         bool non_temporal) const {
  const Operands& operands = packer_->operands();
  const bool is_cast = operands.dtype != operands.wire_dtype;
  const auto wire_bytes =
      static_cast<size_t>(tile.count * packer_->element_bytes());
  alignas(64) std::byte reduced[kTileElements * sizeof(double)];
  std::byte* const to = non_temporal                     ? reduced
                        : tile.result != nullptr         ? tile.result
                        : is_cast || tile.out == nullptr ? reduced
                                                         : tile.out;
  ReduceBlocks(of_ranks_, inputs, to, tile.count);
  if (non_temporal) NonTemporalCopy(tile.result, to, wire_bytes);
  if (tile.out == nullptr) return;
  if (is_cast) {
    hvd::Unpack(operands.wire_dtype, operands.dtype, to, tile.out, tile.count);
  } else if (to != tile.out) {
    packer_->Copy(tile.segment, to, tile.out, wire_bytes);
  }
}

void Reducer::ReduceWithinHost(const Contributions& from,
                               std::byte* partial) const {
  const CopyTimer timer(packer_->times(), &BatchTimes::reduce_ns);
  const int64_t element_bytes = packer_->element_bytes();
  packer_->Share(from.begin, from.end, [&](int64_t begin, int64_t end) {
    ReduceHostRange(PartOf(from, begin, end, element_bytes),
                    partial + (begin - from.begin) * element_bytes);
  });
}

void Reducer::ReduceHostRange(const Contributions& from,
                              std::byte* partial) const {
  const Operands& operands = packer_->operands();
  const int64_t element_bytes = packer_->element_bytes();
  alignas(64) std::byte packed[kTileElements * sizeof(double)];
  std::vector<const void*> inputs(from.blocks.size());
  const auto reduce = [&](const Segment& segment, int64_t first, int64_t count,
                          int64_t offset) {
    for (size_t place = 0; place < inputs.size(); ++place) {
      inputs[place] = static_cast<int>(place) == from.own_place
                          ? packer_->Input(segment, first, count, packed)
                          : from.blocks[place] + offset;
    }
    ReduceBlocks(within_host_, inputs, partial + offset, count);
  };
  from.map.ForRange(
      from.begin, from.end,
      [&](size_t segment, int64_t first, int64_t count, int64_t done) {
        for (int64_t at = 0; at < count; at += kTileElements) {
          reduce(operands.segments[segment], first + at,
                 std::min(kTileElements, count - at),
                 (done + at) * element_bytes);
        }
      });
}

void Reducer::ReduceAcrossHosts(int64_t count,
                                const std::vector<const std::byte*>& partials,
                                std::byte* result) const {
  const CopyTimer timer(packer_->times(), &BatchTimes::reduce_ns);
  const std::vector<const void*> inputs(partials.begin(), partials.end());
  ReduceBlocks(across_hosts_, inputs, result, count);
}

}  // namespace hvd
