// SPDX-License-Identifier: Apache-2.0
// The kernels around copy_tile.h and row_sums.h, one block for each tile.
// CUDA's compiler makes an image of them, which cuda_kernels.cc loads by these
// names.
#include <cstdint>

#include "cpu/float16.h"
#include "transport/device/copy_table.h"
#include "transport/device/copy_tile.h"
#include "transport/device/row_sums.h"

namespace hvd {
namespace {

constexpr int kThreads = 256;

__device__ TileThread ThisThread() {
  return {static_cast<int64_t>(threadIdx.x), static_cast<int64_t>(blockDim.x)};
}

template <typename Table>
__device__ void Move(const Table& table, int element_bytes) {
  const CopySegment tile =
      TileOf(table, blockIdx.x, element_bytes, element_bytes);
  MoveTile(tile.from, tile.to, tile.count * element_bytes, ThisThread());
}

template <typename From, typename To>
__device__ void Convert(const LargeCopyTable& table, double scale) {
  const CopySegment tile = TileOf(table, blockIdx.x, sizeof(From), sizeof(To));
  ConvertTile(static_cast<const From*>(tile.from), static_cast<To*>(tile.to),
              tile.count, scale, ThisThread());
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    hvd_move_few(const __grid_constant__ CopyTable table, int element_bytes) {
  Move(table, element_bytes);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    hvd_move_many(const __grid_constant__ LargeCopyTable table,
                  int element_bytes) {
  Move(table, element_bytes);
}

// Conversions are of large tables alone, because there are so many of them.
#define HVD_KERNELS(from, From, to, To)                                        \
  extern "C" __global__ void __launch_bounds__(kThreads) hvd_##from##_to_##to( \
      const __grid_constant__ LargeCopyTable table, double scale) {            \
    Convert<From, To>(table, scale);                                           \
  }                                                                            \
  extern "C" __global__ void __launch_bounds__(kThreads)                       \
      hvd_sum_##from##_to_##to(const __grid_constant__ RowSumTable table,      \
                               const RowSumFactors factors) {                  \
    SumTile<From, To>(table, blockIdx.x, factors, ThisThread());               \
  }
#define HVD_KERNELS_FROM(from, From)          \
  HVD_KERNELS(from, From, float16, Float16)   \
  HVD_KERNELS(from, From, bfloat16, Bfloat16) \
  HVD_KERNELS(from, From, float32, float)     \
  HVD_KERNELS(from, From, float64, double)
HVD_KERNELS_FROM(float16, Float16)
HVD_KERNELS_FROM(bfloat16, Bfloat16)
HVD_KERNELS_FROM(float32, float)
HVD_KERNELS_FROM(float64, double)

}  // namespace hvd
