// SPDX-License-Identifier: Apache-2.0
// TileTable: which block of a GPU works on what, when one launch of a kernel
// works on many tensors.
//
// Vendor-free. The same functions run in kernels and, in tests, on the host.
#ifndef HVD_TRANSPORT_DEVICE_TILE_TABLE_H_
#define HVD_TRANSPORT_DEVICE_TILE_TABLE_H_

#include <cstdint>
#include <vector>

#include "cpu/host_device.h"

namespace hvd {

// Tiles of equal length, and one shorter tile at the end of each segment. A
// kernel gets the table as its argument. A segment S has a `count` of elements.
template <typename S, int kMost>
struct TileTable {
  using Segment = S;
  static constexpr int kMostSegments = kMost;

  // Each has at least one element.
  Segment segments[kMostSegments];
  // The first tile of each segment. Behind the last one: how many tiles.
  uint32_t first_tile[kMostSegments + 1];
  int32_t segment_count;
  int64_t tile_elements;

  HVD_HOST_DEVICE uint32_t tile_count() const {
    return first_tile[segment_count];
  }
};

// A kernel's argument has so many bytes at most, of which some are for others.
inline constexpr int64_t kSmallArgument = 4096 - 64;
inline constexpr int64_t kLargeArgument = 32764 - 64;

// The segment that a tile is of.
template <typename Table>
HVD_HOST_DEVICE int SegmentOf(const Table& table, uint32_t tile) {
  int begin = 0, end = table.segment_count;
  while (end - begin > 1) {
    const int middle = begin + (end - begin) / 2;
    if (table.first_tile[middle] <= tile) {
      begin = middle;
    } else {
      end = middle;
    }
  }
  return begin;
}

// Some elements of a segment.
struct ElementRange {
  int64_t begin;
  int64_t count;
};

// Those of a tile of segment `s`.
template <typename Table>
HVD_HOST_DEVICE ElementRange RangeOf(const Table& table, uint32_t tile, int s) {
  const int64_t begin =
      static_cast<int64_t>(tile - table.first_tile[s]) * table.tile_elements;
  const int64_t rest = table.segments[s].count - begin;
  return {begin, rest < table.tile_elements ? rest : table.tile_elements};
}

// The tables of the launches that these segments need. Segments without
// elements are left out. `tile_elements` is at least 1.
template <typename Table>
[[nodiscard]] std::vector<Table> MakeTileTables(
    const std::vector<typename Table::Segment>& segments,
    int64_t tile_elements) {
  // A grid has this many blocks at most, and a tile is a block.
  constexpr int64_t kMostTiles = (int64_t{1} << 31) - 1;
  std::vector<Table> tables;
  for (const typename Table::Segment& segment : segments) {
    if (segment.count == 0) continue;
    const int64_t tiles = (segment.count - 1) / tile_elements + 1;
    if (tables.empty() || tables.back().segment_count == Table::kMostSegments ||
        tables.back().tile_count() + tiles > kMostTiles) {
      Table& added = tables.emplace_back();
      added.segment_count = 0;
      added.first_tile[0] = 0;
      added.tile_elements = tile_elements;
    }
    Table& table = tables.back();
    const uint32_t first = table.tile_count();
    table.segments[table.segment_count++] = segment;
    table.first_tile[table.segment_count] =
        first + static_cast<uint32_t>(tiles);
  }
  return tables;
}

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_TILE_TABLE_H_
