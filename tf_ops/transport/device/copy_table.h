// SPDX-License-Identifier: Apache-2.0
// CopyTable: which thread of a GPU copies what, when many tensors move at once.
//
// Vendor-free. The same functions run in kernels and, in tests, on the host.
#ifndef HVD_TRANSPORT_DEVICE_COPY_TABLE_H_
#define HVD_TRANSPORT_DEVICE_COPY_TABLE_H_

#include <cstdint>
#include <vector>

#include "cpu/host_device.h"

namespace hvd {

// Elements that go from one place to another. The places do not overlap.
struct CopySegment {
  const void* from;
  void* to;
  int64_t count;
};

// What one launch of a kernel copies: tiles of equal length, and one shorter
// tile at the end of each segment. A kernel gets the table as its argument.
template <int kMost>
struct CopyTableOf {
  static constexpr int kMostSegments = kMost;

  // Each has at least one element.
  CopySegment segments[kMostSegments];
  // The first tile of each segment. Behind the last one: how many tiles.
  uint32_t first_tile[kMostSegments + 1];
  int32_t segment_count;
  int64_t tile_elements;

  HVD_HOST_DEVICE uint32_t tile_count() const {
    return first_tile[segment_count];
  }
};
// For few tensors: a small argument is soon with the card.
using CopyTable = CopyTableOf<140>;
static_assert(sizeof(CopyTable) <= 4096 - 64);
// For many. One launch instead of eight saves each the time in which a card
// that begins or ends is not busy. An argument has 32764 bytes at most.
using LargeCopyTable = CopyTableOf<1160>;
static_assert(sizeof(LargeCopyTable) <= 32764 - 64);

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

// The elements of a tile, of types with so many bytes.
template <typename Table>
HVD_HOST_DEVICE CopySegment TileOf(const Table& table, uint32_t tile,
                                   int from_bytes, int to_bytes) {
  const int s = SegmentOf(table, tile);
  const CopySegment& whole = table.segments[s];
  const int64_t begin =
      static_cast<int64_t>(tile - table.first_tile[s]) * table.tile_elements;
  const int64_t rest = whole.count - begin;
  return {static_cast<const unsigned char*>(whole.from) + begin * from_bytes,
          static_cast<unsigned char*>(whole.to) + begin * to_bytes,
          rest < table.tile_elements ? rest : table.tile_elements};
}

// The tables of the launches that copy these segments. Segments without
// elements are left out. `tile_elements` is at least 1. Table: CopyTable or
// LargeCopyTable.
template <typename Table>
[[nodiscard]] std::vector<Table> MakeCopyTables(
    const std::vector<CopySegment>& segments, int64_t tile_elements);

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_COPY_TABLE_H_
