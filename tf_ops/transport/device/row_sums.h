// SPDX-License-Identifier: Apache-2.0
// What each thread of a block does to add up rows: those of one rank that have
// the same id, or those of all ranks.
//
// Neighbouring threads have neighbouring elements, 16 bytes each where rows can
// be cut like that. Vendor-free: the same functions run in kernels and, in
// tests, on the host.
#ifndef HVD_TRANSPORT_DEVICE_ROW_SUMS_H_
#define HVD_TRANSPORT_DEVICE_ROW_SUMS_H_

#include <cstdint>

#include "cpu/float16.h"
#include "cpu/host_device.h"
#include "transport/device/copy_tile.h"
#include "transport/device/tile_table.h"

namespace hvd {

// Row i of `to` is the sum of the rows of `from` with the numbers
// sources[begins[i]] up to sources[begins[i + 1] - 1], in this order. Without
// any it is 0. All four are memory of the GPU.
struct RowSums {
  const void* from;
  void* to;
  const uint32_t* begins;
  const uint32_t* sources;
  int64_t count;      // elements of `to`
  int64_t row_count;  // elements of a row
};

using RowSumTable = TileTable<RowSums, 70>;
static_assert(sizeof(RowSumTable) <= kSmallArgument);

// Tiles begin at multiples of it, so that no access is in two of them.
inline constexpr int64_t kRowSumAlignment = 16;

// What is done with a sum, in the order of the members. float16 and bfloat16
// are computed in float32.
struct RowSumFactors {
  double divisor = 1.0;
  double scale = 1.0;
  bool is_rounded = true;  // to the type of its terms
  double late_scale = 1.0;
};

namespace row_sums {

// kGroup elements are aligned for accesses of so many bytes.
template <typename T, int kGroup>
inline constexpr int kUnit =
    kGroup * int{sizeof(T)} < copy_tile::kAccessBytes ? kGroup * int{sizeof(T)}
                                                      : copy_tile::kAccessBytes;

template <typename From, typename To>
HVD_HOST_DEVICE inline To Finished(typename ComputeType<From>::type sum,
                                   const RowSumFactors& factors) {
  using C = typename ComputeType<From>::type;
  using copy_tile::ConvertHere;
  sum = sum / static_cast<C>(factors.divisor);
  sum = sum * static_cast<C>(factors.scale);
  if (factors.is_rounded) sum = ConvertHere<C>(ConvertHere<From>(sum));
  return ConvertHere<To>(
      static_cast<C>(sum * static_cast<C>(factors.late_scale)));
}

// Adds up kGroup elements at `column` of the rows whose numbers these are.
template <typename From, typename To, int kGroup>
HVD_HOST_DEVICE void SumGroup(const RowSums& rows, int64_t row, int64_t column,
                              const RowSumFactors& factors) {
  using namespace copy_tile;
  using C = typename ComputeType<From>::type;
  const auto* const from = static_cast<const From*>(rows.from) + column;
  const uint32_t begin = rows.begins[row], end = rows.begins[row + 1];
  // Adding this changes no bit of any value. Adding 0.0 would: -0.0.
  const C nothing = begin < end ? C(-0.0) : C(0.0);
  C sums[kGroup];
  for (int j = 0; j < kGroup; ++j) sums[j] = nothing;
  alignas(kAccessBytes) From values[kInFlight][kGroup];
  // Reads all that are under way, then adds them in order.
  for (uint32_t k = begin; k < end; k += kInFlight) {
    const auto count = static_cast<int>(
        end - k < uint32_t{kInFlight} ? end - k : uint32_t{kInFlight});
    for (int i = 0; i < kInFlight; ++i) {
      if (i >= count) continue;
      const int64_t source = rows.sources[k + static_cast<uint32_t>(i)];
      MoveUnits<kGroup * sizeof(From), kUnit<From, kGroup>>(
          from + source * rows.row_count, values[i]);
    }
    for (int i = 0; i < kInFlight; ++i) {
      if (i >= count) continue;
      for (int j = 0; j < kGroup; ++j) {
        sums[j] = sums[j] + ConvertHere<C>(values[i][j]);
      }
    }
  }
  alignas(kAccessBytes) To results[kGroup];
  for (int j = 0; j < kGroup; ++j) {
    results[j] = Finished<From, To>(sums[j], factors);
  }
  To* const to = static_cast<To*>(rows.to) + row * rows.row_count + column;
  MoveUnits<kGroup * sizeof(To), kUnit<To, kGroup>>(results, to);
}

// A thread's part of some elements, which begin at a multiple of kGroup.
template <typename From, typename To, int kGroup>
HVD_HOST_DEVICE void SumGroups(const RowSums& rows, ElementRange range,
                               const RowSumFactors& factors,
                               TileThread thread) {
  // Most rows are short enough for 32-bit divisions, which take less time.
  const int64_t first_row = range.begin / rows.row_count;
  const int64_t first_column = range.begin - first_row * rows.row_count;
  const int64_t end = first_column + range.count;
  const bool is_narrow = end <= INT32_MAX && rows.row_count <= INT32_MAX;
  for (int64_t at = first_column + thread.number * kGroup; at < end;
       at += thread.count * kGroup) {
    const int64_t further =
        is_narrow ? static_cast<int64_t>(static_cast<uint32_t>(at) /
                                         static_cast<uint32_t>(rows.row_count))
                  : at / rows.row_count;
    SumGroup<From, To, kGroup>(rows, first_row + further,
                               at - further * rows.row_count, factors);
  }
}

}  // namespace row_sums

// A thread's part of a tile, whose table has tiles of multiples of
// kRowSumAlignment. Both types are floating: float, double, Float16 or
// Bfloat16. Elements are aligned as their type demands.
template <typename From, typename To>
HVD_HOST_DEVICE void SumTile(const RowSumTable& table, uint32_t tile,
                             const RowSumFactors& factors, TileThread thread) {
  using namespace copy_tile;
  constexpr int kGroup = kAccessBytes / sizeof(From);
  const int s = SegmentOf(table, tile);
  const RowSums& rows = table.segments[s];
  const ElementRange range = RangeOf(table, tile, s);
  if (rows.row_count % kGroup == 0 && IsAligned(rows.from, kAccessBytes) &&
      IsAligned(rows.to, row_sums::kUnit<To, kGroup>)) {
    row_sums::SumGroups<From, To, kGroup>(rows, range, factors, thread);
  } else {
    row_sums::SumGroups<From, To, 1>(rows, range, factors, thread);
  }
}

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_ROW_SUMS_H_
