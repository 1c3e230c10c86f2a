// SPDX-License-Identifier: Apache-2.0
// CopyTable: which thread of a GPU copies what, when many tensors move at once.
//
// Vendor-free. The same functions run in kernels and, in tests, on the host.
#ifndef HVD_TRANSPORT_DEVICE_COPY_TABLE_H_
#define HVD_TRANSPORT_DEVICE_COPY_TABLE_H_

#include <cstdint>

#include "cpu/host_device.h"
#include "transport/device/tile_table.h"

namespace hvd {

// Elements that go from one place to another. The places do not overlap.
struct CopySegment {
  const void* from;
  void* to;
  int64_t count;
};

// For few tensors: a small argument is soon with the GPU.
using CopyTable = TileTable<CopySegment, 140>;
static_assert(sizeof(CopyTable) <= kSmallArgument);
// For many. One launch instead of eight saves each the time in which a GPU
// that begins or ends is not busy.
using LargeCopyTable = TileTable<CopySegment, 1160>;
static_assert(sizeof(LargeCopyTable) <= kLargeArgument);

// The elements of a tile, of types with so many bytes.
template <typename Table>
HVD_HOST_DEVICE CopySegment TileOf(const Table& table, uint32_t tile,
                                   int from_bytes, int to_bytes) {
  const int s = SegmentOf(table, tile);
  const CopySegment& whole = table.segments[s];
  const ElementRange range = RangeOf(table, tile, s);
  return {
      static_cast<const unsigned char*>(whole.from) + range.begin * from_bytes,
      static_cast<unsigned char*>(whole.to) + range.begin * to_bytes,
      range.count};
}

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_COPY_TABLE_H_
