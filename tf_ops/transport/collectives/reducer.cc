// SPDX-License-Identifier: Apache-2.0
// Reduces tile by tile, out of the peers' blocks and this rank's own input.
#include "transport/collectives/reducer.h"

#include <algorithm>

#include "cpu/non_temporal_copy.h"

namespace hvd {
namespace {

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

Reducer::Reducer(const Packer* packer, const HostMap& hosts, int rank)
    : packer_(packer), rank_(rank) {
  averaged_.ranks = packer->operands().divisor;
  if (hosts.has_two_levels()) {
    hosts_averaged_ = AveragedOverHosts(packer->operands(), hosts);
  }
}

void Reducer::Reduce(const SegmentMap& in, const SegmentMap& out, int64_t begin,
                     int64_t end, const std::vector<const std::byte*>& blocks,
                     std::byte* result) const {
  const CopyTimer timer(packer_->times(), &BatchTimes::reduce_ns);
  const int64_t element_bytes = packer_->element_bytes();
  StoreChoice* const choice = packer_->store_choice();
  const bool non_temporal =
      result != nullptr && choice != nullptr &&
      choice->NonTemporal(static_cast<size_t>((end - begin) * element_bytes));
  packer_->Share(begin, end, [&](int64_t from, int64_t to) {
    const int64_t offset = (from - begin) * element_bytes;
    ReduceRange(in, out, from, to, Advanced(blocks, offset),
                result == nullptr ? nullptr : result + offset, non_temporal);
  });
}

void Reducer::ReduceRange(const SegmentMap& in, const SegmentMap& out,
                          int64_t begin, int64_t end,
                          const std::vector<const std::byte*>& blocks,
                          std::byte* result, bool non_temporal) const {
  const int64_t element_bytes = packer_->element_bytes();
  const Operands& operands = packer_->operands();
  const auto bytes = static_cast<int64_t>(SizeOf(operands.dtype));
  std::vector<const void*> inputs(blocks.size());
  in.ForRange(
      begin, end,
      [&](size_t segment, int64_t first, int64_t count, int64_t done) {
        // Both maps have the same runs. They differ in where those begin.
        int64_t out_first = first;
        if (&in != &out) {
          out.ForRange(
              begin + done, begin + done + 1,
              [&](size_t, int64_t at, int64_t, int64_t) { out_first = at; });
        }
        const Segment& of = operands.segments[segment];
        for (int64_t at = 0; at < count; at += kTileElements) {
          const int64_t offset = (done + at) * element_bytes;
          for (size_t peer = 0; peer < blocks.size(); ++peer) {
            if (static_cast<int>(peer) == rank_) continue;
            inputs[peer] = blocks[peer] + offset;
          }
          ReduceTile(
              of, first + at,
              of.out == nullptr
                  ? nullptr
                  : static_cast<std::byte*>(of.out) + (out_first + at) * bytes,
              std::min(kTileElements, count - at), &inputs,
              result == nullptr ? nullptr : result + offset, non_temporal);
        }
      });
}

void Reducer::ReduceTile(const Segment& segment, int64_t first, std::byte* out,
                         int64_t count, std::vector<const void*>* inputs,
                         std::byte* result, bool non_temporal) const {
  const Operands& operands = packer_->operands();
  const bool is_cast = operands.dtype != operands.wire_dtype;
  const auto wire_bytes = static_cast<size_t>(count * packer_->element_bytes());
  alignas(64) std::byte packed[kTileElements * sizeof(double)];
  alignas(64) std::byte reduced[kTileElements * sizeof(double)];
  (*inputs)[static_cast<size_t>(rank_)] =
      packer_->Input(segment, first, count, packed);
  std::byte* const to = non_temporal                ? reduced
                        : result != nullptr         ? result
                        : is_cast || out == nullptr ? reduced
                                                    : out;
  ReduceBlocks(operands.wire_dtype, operands.reduce_op, *inputs, to, count,
               operands.postscale, BestVectorUnit(), averaged_);
  if (non_temporal) NonTemporalCopy(result, to, wire_bytes);
  if (out == nullptr) return;
  if (is_cast) {
    hvd::Unpack(operands.wire_dtype, operands.dtype, to, out, count);
  } else if (to != out) {
    packer_->Copy(segment, to, out, wire_bytes);
  }
}

void Reducer::ReduceWithinHost(const SegmentMap& in, int64_t begin, int64_t end,
                               const std::vector<const std::byte*>& blocks,
                               int own_place, std::byte* partial) const {
  const CopyTimer timer(packer_->times(), &BatchTimes::reduce_ns);
  packer_->Share(begin, end, [&](int64_t from, int64_t to) {
    const int64_t offset = (from - begin) * packer_->element_bytes();
    ReduceHostRange(in, from, to, Advanced(blocks, offset), own_place,
                    partial + offset);
  });
}

void Reducer::ReduceHostRange(const SegmentMap& in, int64_t begin, int64_t end,
                              const std::vector<const std::byte*>& blocks,
                              int own_place, std::byte* partial) const {
  const Operands& operands = packer_->operands();
  alignas(64) std::byte packed[kTileElements * sizeof(double)];
  const ReduceOp op = AveragesEarly(operands) ? ReduceOp::kAverage
                      : operands.reduce_op == ReduceOp::kAverage
                          ? ReduceOp::kSum
                          : operands.reduce_op;
  const auto reduce = [&](const Segment& segment, int64_t first, int64_t count,
                          int64_t offset) {
    const std::vector<const std::byte*> here = Advanced(blocks, offset);
    std::vector<const void*> inputs(here.begin(), here.end());
    inputs[static_cast<size_t>(own_place)] =
        packer_->Input(segment, first, count, packed);
    ReduceBlocks(operands.wire_dtype, op, inputs, partial + offset, count, 1.0);
  };
  in.ForRange(begin, end,
              [&](size_t segment, int64_t first, int64_t count, int64_t done) {
                for (int64_t at = 0; at < count; at += kTileElements) {
                  reduce(operands.segments[segment], first + at,
                         std::min(kTileElements, count - at),
                         (done + at) * packer_->element_bytes());
                }
              });
}

void Reducer::ReduceAcrossHosts(int64_t count,
                                const std::vector<const std::byte*>& partials,
                                std::byte* result) const {
  const CopyTimer timer(packer_->times(), &BatchTimes::reduce_ns);
  const Operands& operands = packer_->operands();
  const std::vector<const void*> inputs(partials.begin(), partials.end());
  ReduceBlocks(operands.wire_dtype, operands.reduce_op, inputs, result, count,
               operands.postscale, BestVectorUnit(), hosts_averaged_);
}

}  // namespace hvd
