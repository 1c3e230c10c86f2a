// SPDX-License-Identifier: Apache-2.0
// Fills the tables of as many launches as the segments need.
#include "transport/device/copy_table.h"

namespace hvd {
namespace {

// A grid has this many blocks at most, and a tile is a block.
constexpr int64_t kMostTiles = (int64_t{1} << 31) - 1;

}  // namespace

template <typename Table>
std::vector<Table> MakeCopyTables(const std::vector<CopySegment>& segments,
                                  int64_t tile_elements) {
  std::vector<Table> tables;
  for (const CopySegment& segment : segments) {
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

template std::vector<CopyTable> MakeCopyTables(const std::vector<CopySegment>&,
                                               int64_t);
template std::vector<LargeCopyTable> MakeCopyTables(
    const std::vector<CopySegment>&, int64_t);

}  // namespace hvd
