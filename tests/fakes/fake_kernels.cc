// SPDX-License-Identifier: Apache-2.0
// Segments are copied to the host, to as odd a place, and worked on there.
#include "fake_kernels.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "cpu/float16.h"
#include "transport/device/copy_table.h"
#include "transport/device/copy_tile.h"
#include "transport/device/row_sums.h"

namespace hvd {
namespace {

constexpr size_t kBoundary = 16;

// Host memory whose distance from a boundary is that of a place on the GPU.
class HostTwin {
 public:
  HostTwin(const void* on_gpu, size_t bytes)
      : memory_(bytes + 2 * kBoundary), bytes_(bytes) {
    const auto here = reinterpret_cast<uintptr_t>(memory_.data());
    const auto there = reinterpret_cast<uintptr_t>(on_gpu);
    data_ = memory_.data() + (there - here) % kBoundary;
  }
  unsigned char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::vector<unsigned char> memory_;
  const size_t bytes_;
  unsigned char* data_;
};

// Runs `part(from, to, elements, thread)` for each thread of each tile.
template <typename Table, typename Part>
void RunTiles(FakeGpu* gpu, const Table& table, unsigned blocks,
              unsigned threads, int from_bytes, int to_bytes, Part part) {
  for (int s = 0; s < table.segment_count; ++s) {
    const CopySegment& whole = table.segments[s];
    const auto count = static_cast<size_t>(whole.count);
    const HostTwin from(whole.from, count * static_cast<size_t>(from_bytes));
    const HostTwin to(whole.to, count * static_cast<size_t>(to_bytes));
    gpu->Read(from.data(), whole.from, from.bytes());
    gpu->Read(to.data(), whole.to, to.bytes());
    for (uint32_t tile = table.first_tile[s];
         tile < table.first_tile[s + 1] && tile < blocks; ++tile) {
      const CopySegment place = TileOf(table, tile, from_bytes, to_bytes);
      const auto in_at = static_cast<const unsigned char*>(place.from) -
                         static_cast<const unsigned char*>(whole.from);
      const auto out_at = static_cast<unsigned char*>(place.to) -
                          static_cast<unsigned char*>(whole.to);
      for (int64_t thread = 0; thread < threads; ++thread) {
        part(from.data() + in_at, to.data() + out_at, place.count,
             TileThread{thread, threads});
      }
    }
    gpu->Write(whole.to, to.data(), to.bytes());
  }
}

template <typename Table>
FakeGpu::Work Move(FakeGpu* gpu, unsigned blocks, unsigned threads,
                   void** arguments) {
  const Table table = *static_cast<Table*>(arguments[0]);
  const int bytes = *static_cast<int*>(arguments[1]);
  return [=] {
    RunTiles(gpu, table, blocks, threads, bytes, bytes,
             [=](const void* from, void* to, int64_t count, TileThread thread) {
               MoveTile(from, to, count * bytes, thread);
             });
    return true;
  };
}

template <typename From, typename To>
FakeGpu::Work Convert(FakeGpu* gpu, unsigned blocks, unsigned threads,
                      void** arguments) {
  const LargeCopyTable table = *static_cast<LargeCopyTable*>(arguments[0]);
  const double scale = *static_cast<double*>(arguments[1]);
  return [=] {
    RunTiles(gpu, table, blocks, threads, sizeof(From), sizeof(To),
             [=](const void* from, void* to, int64_t count, TileThread thread) {
               ConvertTile(static_cast<const From*>(from), static_cast<To*>(to),
                           count, scale, thread);
             });
    return true;
  };
}

std::vector<uint32_t> ReadNumbers(FakeGpu* gpu, const uint32_t* from,
                                  size_t count) {
  std::vector<uint32_t> numbers(count);
  gpu->Read(numbers.data(), from, count * sizeof(uint32_t));
  return numbers;
}

// The rows of one segment, by a table of its own.
template <typename From, typename To>
void SumSegment(FakeGpu* gpu, const RowSumTable& table, int s, unsigned blocks,
                unsigned threads, const RowSumFactors& factors) {
  const RowSums& on_gpu = table.segments[s];
  const auto rows = static_cast<size_t>(on_gpu.count / on_gpu.row_count);
  const auto begins = ReadNumbers(gpu, on_gpu.begins, rows + 1);
  const auto sources = ReadNumbers(gpu, on_gpu.sources, begins.back());
  size_t read = 0;
  for (const uint32_t source : sources) {
    read = std::max(read, size_t{source} + 1);
  }
  const auto row = static_cast<size_t>(on_gpu.row_count);
  const HostTwin from(on_gpu.from, read * row * sizeof(From));
  const HostTwin to(on_gpu.to, rows * row * sizeof(To));
  gpu->Read(from.data(), on_gpu.from, from.bytes());
  gpu->Read(to.data(), on_gpu.to, to.bytes());
  RowSumTable here = table;
  here.segments[s] = {from.data(),    to.data(),    begins.data(),
                      sources.data(), on_gpu.count, on_gpu.row_count};
  for (uint32_t tile = table.first_tile[s];
       tile < table.first_tile[s + 1] && tile < blocks; ++tile) {
    for (int64_t thread = 0; thread < threads; ++thread) {
      SumTile<From, To>(here, tile, factors, TileThread{thread, threads});
    }
  }
  gpu->Write(on_gpu.to, to.data(), to.bytes());
}

template <typename From, typename To>
FakeGpu::Work Sum(FakeGpu* gpu, unsigned blocks, unsigned threads,
                  void** arguments) {
  const RowSumTable table = *static_cast<RowSumTable*>(arguments[0]);
  const RowSumFactors factors = *static_cast<RowSumFactors*>(arguments[1]);
  return [=] {
    for (int s = 0; s < table.segment_count; ++s) {
      SumSegment<From, To>(gpu, table, s, blocks, threads, factors);
    }
    return true;
  };
}

using Kernels = std::map<std::string, FakeKernel>;

template <typename From, typename To>
void AddTypes(const std::string& types, Kernels* kernels) {
  (*kernels)["hvd_" + types] = Convert<From, To>;
  (*kernels)["hvd_sum_" + types] = Sum<From, To>;
}

template <typename From>
void AddTypesFrom(const std::string& from, Kernels* kernels) {
  AddTypes<From, Float16>(from + "_to_float16", kernels);
  AddTypes<From, Bfloat16>(from + "_to_bfloat16", kernels);
  AddTypes<From, float>(from + "_to_float32", kernels);
  AddTypes<From, double>(from + "_to_float64", kernels);
}

Kernels All() {
  Kernels kernels;
  kernels["hvd_move_few"] = Move<CopyTable>;
  kernels["hvd_move_many"] = Move<LargeCopyTable>;
  AddTypesFrom<Float16>("float16", &kernels);
  AddTypesFrom<Bfloat16>("bfloat16", &kernels);
  AddTypesFrom<float>("float32", &kernels);
  AddTypesFrom<double>("float64", &kernels);
  return kernels;
}

}  // namespace

const FakeKernel* FindFakeKernel(const std::string& name) {
  static const Kernels kernels = All();
  const auto found = kernels.find(name);
  return found == kernels.end() ? nullptr : &found->second;
}

}  // namespace hvd
