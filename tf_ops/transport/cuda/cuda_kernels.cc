// SPDX-License-Identifier: Apache-2.0
// Loads the kernels by CUDA's driver, and launches one block for each tile.
#include "transport/cuda/cuda_kernels.h"

#include <algorithm>
#include <cstdint>
#include <string>

namespace hvd {
namespace {

// As cuda_kernels.cu has it.
constexpr unsigned kThreads = 256;
// The bytes of a tile in the wider of its two types: each thread makes eight
// accesses of 16 bytes.
constexpr int64_t kTileBytes = int64_t{kThreads} * 16 * 8;
// Two groups of four float32 for each thread: a row may have many terms.
constexpr int64_t kSumTileElements = int64_t{kThreads} * 4 * 2;
static_assert(kSumTileElements % kRowSumAlignment == 0);

// CUDA 12.1's, which was the first to take more than 4 KB of arguments. An
// older driver loads the kernels and does not start them.
constexpr int kDriverVersion = 12010;

constexpr DataType kFloating[] = {DataType::kFloat16, DataType::kBfloat16,
                                  DataType::kFloat32, DataType::kFloat64};

}  // namespace

Result<CudaKernels> CudaKernels::Load(const CudaDriver* driver,
                                      const void* image) {
  if (image == nullptr) {
    return FailedPrecondition("hvd_tf was built without CUDA's compiler");
  }
  int version = 0;
  HVD_RETURN_IF_ERROR(driver->Check(driver->version(&version),
                                    "a GPU's driver tells no version"));
  if (version < kDriverVersion) {
    return FailedPrecondition(
        "a GPU's driver is of CUDA " + std::to_string(version / 1000) + "." +
        std::to_string(version % 1000 / 10) + ", and that of 12.1 is needed");
  }
  CudaModule module = nullptr;
  HVD_RETURN_IF_ERROR(driver->Check(driver->load_module(&module, image),
                                    "a GPU's driver loads no kernels"));
  CudaKernels kernels(driver);
  const auto find = [&](CudaFunction* kernel, const std::string& name) {
    return driver->Check(driver->find_kernel(kernel, module, name.c_str()),
                         "a GPU has no kernel " + name);
  };
  HVD_RETURN_IF_ERROR(find(&kernels.move_few_, "hvd_move_few"));
  HVD_RETURN_IF_ERROR(find(&kernels.move_many_, "hvd_move_many"));
  for (const DataType from : kFloating) {
    for (const DataType to : kFloating) {
      const std::string types = std::string(Name(from)) + "_to_" + Name(to);
      HVD_RETURN_IF_ERROR(find(&kernels.convert_[{from, to}], "hvd_" + types));
      HVD_RETURN_IF_ERROR(find(&kernels.sum_[{from, to}], "hvd_sum_" + types));
    }
  }
  return kernels;
}

template <typename Table>
Status CudaKernels::LaunchTables(
    const std::vector<typename Table::Segment>& segments, int64_t tile_elements,
    CudaFunction kernel, void* argument, const std::string& what,
    CudaStream stream) const {
  for (Table& table : MakeTileTables<Table>(segments, tile_elements)) {
    void* arguments[] = {&table, argument};
    HVD_RETURN_IF_ERROR(driver_->Check(
        driver_->launch(kernel, table.tile_count(), 1, 1, kThreads, 1, 1, 0,
                        stream, arguments, nullptr),
        "a GPU did not start to " + what));
  }
  return Status::Ok();
}

Status CudaKernels::Copy(const std::vector<CopySegment>& segments,
                         const CopyOperation& operation,
                         CudaStream stream) const {
  const size_t from_bytes = SizeOf(operation.from);
  const size_t to_bytes = SizeOf(operation.to);
  const int64_t tile_elements =
      kTileBytes / static_cast<int64_t>(std::max(from_bytes, to_bytes));
  if (operation.from == operation.to && operation.scale == 1.0) {
    int element_bytes = static_cast<int>(from_bytes);
    return segments.size() <= CopyTable::kMostSegments
               ? LaunchTables<CopyTable>(segments, tile_elements, move_few_,
                                         &element_bytes, "copy", stream)
               : LaunchTables<LargeCopyTable>(segments, tile_elements,
                                              move_many_, &element_bytes,
                                              "copy", stream);
  }
  const auto found = convert_.find({operation.from, operation.to});
  if (found == convert_.end()) {
    return Internal(std::string("a GPU is asked to scale or convert ") +
                    Name(operation.from) + " to " + Name(operation.to) + ".");
  }
  double scale = operation.scale;
  return LaunchTables<LargeCopyTable>(segments, tile_elements, found->second,
                                      &scale, "copy", stream);
}

Status CudaKernels::SumRows(const std::vector<RowSums>& rows,
                            const RowSumOperation& operation,
                            CudaStream stream) const {
  const auto found = sum_.find({operation.from, operation.to});
  if (found == sum_.end()) {
    return Internal(std::string("a GPU is asked to add up rows of ") +
                    Name(operation.from) + " as " + Name(operation.to) + ".");
  }
  RowSumFactors factors = operation.factors;
  return LaunchTables<RowSumTable>(rows, kSumTileElements, found->second,
                                   &factors, "add up rows", stream);
}

}  // namespace hvd
