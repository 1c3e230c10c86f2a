// SPDX-License-Identifier: Apache-2.0
// How fast a GPU adds up rows with ids, as a sparse allreduce does with those
// of all ranks, against a plain copy of as many bytes from device to device.
//
//   gpu_row_sums [rounds]
//
// Bandwidths count bytes of rows read and written, in 1e9 bytes a second. Each
// is the median of the rounds. Both take turns.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gpu_timing.h"
#include "loaded_kernels.h"
#include "transport/device/row_terms.h"

namespace hvd {
namespace {

// Tables of a model, and what ranks have of each.
struct Tables {
  const char* name;
  int count, ranks;
  int64_t rows;       // of a rank
  int64_t result;     // ids of any rank
  int64_t row_count;  // elements of a row
};

void* OnGpu(size_t bytes) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, bytes));
  Check(cudaMemset(memory, 0, bytes));
  return memory;
}

const uint32_t* OnGpu(const std::vector<uint32_t>& numbers) {
  const size_t bytes = numbers.size() * sizeof(uint32_t);
  void* const memory = OnGpu(bytes);
  Check(cudaMemcpy(memory, numbers.data(), bytes, cudaMemcpyHostToDevice));
  return static_cast<const uint32_t*>(memory);
}

// Each rank has some of the ids, in ascending order.
RowTerms RandomTerms(const Tables& tables, std::mt19937* random) {
  std::vector<std::vector<uint32_t>> places;
  for (int rank = 0; rank < tables.ranks; ++rank) {
    std::vector<uint32_t>& of_rank = places.emplace_back();
    int64_t wanted = tables.rows;
    for (int64_t id = 0; id < tables.result; ++id) {
      const int64_t left = tables.result - id;
      if (static_cast<int64_t>((*random)()) % left >= wanted) continue;
      of_rank.push_back(static_cast<uint32_t>(id));
      --wanted;
    }
  }
  std::vector<RowList> lists;
  for (int rank = 0; rank < tables.ranks; ++rank) {
    lists.push_back({places[static_cast<size_t>(rank)], rank * tables.rows});
  }
  return TermsOf(lists, tables.result);
}

// Memory lasts as long as the process.
void Run(const Tables& tables, int rounds) {
  std::mt19937 random(1);
  const int64_t listed = tables.ranks * tables.rows * tables.row_count;
  const int64_t written = tables.result * tables.row_count;
  std::vector<RowSums> sums;
  for (int t = 0; t < tables.count; ++t) {
    const RowTerms terms = RandomTerms(tables, &random);
    sums.push_back({OnGpu(listed * 4), OnGpu(written * 4), OnGpu(terms.begins),
                    OnGpu(terms.sources), written, tables.row_count});
  }
  const int64_t bytes = tables.count * (listed + written) * 4;
  void* const from = OnGpu(bytes / 2);
  void* const to = OnGpu(bytes / 2);
  cudaStream_t stream = nullptr;
  Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const RowSumOperation operation = {
      DataType::kFloat32, DataType::kFloat32, {1.0, 1.0, true, 1.0}};
  std::vector<double> copy_s, sums_s;
  for (int round = -3; round < rounds; ++round) {
    const double copied_s = Timed(stream, [&] {
      Check(cudaMemcpyAsync(to, from, bytes / 2, cudaMemcpyDeviceToDevice,
                            stream));
    });
    const double summed_s = Timed(stream, [&] {
      Check(LoadedKernels().SumRows(sums, operation, stream));
    });
    if (round < 0) continue;
    copy_s.push_back(copied_s);
    sums_s.push_back(summed_s);
  }
  const double copy = bytes / Median(copy_s) / 1e9;
  const double sum = bytes / Median(sums_s) / 1e9;
  std::printf("| %-24s | %6.1f MB | %5.0f | %5.0f | %5.2f |\n", tables.name,
              bytes / 1e6, copy, sum, sum / copy);
}

}  // namespace
}  // namespace hvd

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 50;
  if (!hvd::PrintGpu(rounds)) return 1;
  std::printf("| rows | size | copy, GB/s | sums, GB/s | of a copy |\n");
  std::printf("|---|---|---|---|---|\n");
  // Criteo's categories at 2048 examples a rank, and one large table.
  hvd::Run({"26 tables of 16, 4 ranks", 26, 4, 900, 2600, 16}, rounds);
  hvd::Run({"26 tables of 16, 8 ranks", 26, 8, 900, 4200, 16}, rounds);
  hvd::Run({"1 table of 128, 4 ranks", 1, 4, 100000, 300000, 128}, rounds);
  hvd::Run({"1 table of 128, 8 ranks", 1, 8, 100000, 500000, 128}, rounds);
}
