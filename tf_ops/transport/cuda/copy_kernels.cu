// SPDX-License-Identifier: Apache-2.0
// The kernels around copy_tile.h, one block for each tile, and their launches.
#include <string>

#include "cpu/float16.h"
#include "transport/cuda/copy_kernels.h"
#include "transport/device/copy_tile.h"

namespace hvd {
namespace {

constexpr int kThreads = 256;
// Of the wider type: eight accesses of each thread.
constexpr int64_t kTileBytes = int64_t{kThreads} * 16 * 8;

__device__ TileThread ThisThread() {
  return {static_cast<int64_t>(threadIdx.x), static_cast<int64_t>(blockDim.x)};
}

template <typename Table>
__global__ void __launch_bounds__(kThreads)
    MoveKernel(const __grid_constant__ Table table, int element_bytes) {
  const CopySegment tile =
      TileOf(table, blockIdx.x, element_bytes, element_bytes);
  MoveTile(tile.from, tile.to, tile.count * element_bytes, ThisThread());
}

// Of large tables alone: there are sixteen of it.
template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    ConvertKernel(const __grid_constant__ LargeCopyTable table, double scale) {
  const CopySegment tile = TileOf(table, blockIdx.x, sizeof(From), sizeof(To));
  ConvertTile(static_cast<const From*>(tile.from), static_cast<To*>(tile.to),
              tile.count, scale, ThisThread());
}

// Calls visit(T()) with the type. False if it is not floating.
template <typename Visit>
bool WithFloating(DataType dtype, Visit visit) {
  switch (dtype) {
    case DataType::kFloat16:
      visit(Float16());
      return true;
    case DataType::kBfloat16:
      visit(Bfloat16());
      return true;
    case DataType::kFloat32:
      visit(float());
      return true;
    case DataType::kFloat64:
      visit(double());
      return true;
    default:
      return false;
  }
}

void Launch(const LargeCopyTable& table, const CopyOperation& operation,
            cudaStream_t stream) {
  (void)WithFloating(operation.from, [&](auto from) {
    (void)WithFloating(operation.to, [&](auto to) {
      ConvertKernel<decltype(from), decltype(to)>
          <<<table.tile_count(), kThreads, 0, stream>>>(table, operation.scale);
    });
  });
}

// `launch(table)` starts the kernel of a table.
template <typename Table, typename Start>
Status LaunchTables(const std::vector<CopySegment>& segments,
                    int64_t tile_elements, Start launch) {
  for (const Table& table : MakeCopyTables<Table>(segments, tile_elements)) {
    launch(table);
    const cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) continue;
    return Internal(std::string("a GPU did not start to copy: ") +
                    cudaGetErrorString(error) + ".");
  }
  return Status::Ok();
}

}  // namespace

Status LaunchCopies(const std::vector<CopySegment>& segments,
                    const CopyOperation& operation, cudaStream_t stream) {
  const bool converts =
      operation.from != operation.to || operation.scale != 1.0;
  if (converts && !(IsFloating(operation.from) && IsFloating(operation.to))) {
    return Internal(std::string("a GPU is asked to scale or convert ") +
                    Name(operation.from) + " to " + Name(operation.to) + ".");
  }
  const size_t from_bytes = SizeOf(operation.from);
  const size_t to_bytes = SizeOf(operation.to);
  const auto wider =
      static_cast<int64_t>(from_bytes < to_bytes ? to_bytes : from_bytes);
  const int64_t tile_elements = kTileBytes / wider;
  if (converts) {
    return LaunchTables<LargeCopyTable>(
        segments, tile_elements,
        [&](const auto& table) { Launch(table, operation, stream); });
  }
  const auto move = [&](const auto& table) {
    MoveKernel<<<table.tile_count(), kThreads, 0, stream>>>(
        table, static_cast<int>(from_bytes));
  };
  return segments.size() <= CopyTable::kMostSegments
             ? LaunchTables<CopyTable>(segments, tile_elements, move)
             : LaunchTables<LargeCopyTable>(segments, tile_elements, move);
}

}  // namespace hvd
