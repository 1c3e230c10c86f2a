// SPDX-License-Identifier: Apache-2.0
// Types that all layers use: verbs, element types, reduce ops.
//
// Their numeric values are fixed: they travel between ranks and into Python.
#ifndef HVD_CORE_TYPES_H_
#define HVD_CORE_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace hvd {

// Every verb: its name in code, its number on the wire, its name for people.
// core/verbs/ has the rules of each, and transport/collectives/ its way over a
// wire.
#define HVD_FOR_EACH_VERB(V)           \
  V(Allreduce, 0, "allreduce")         \
  V(Allgather, 1, "allgather")         \
  V(Broadcast, 2, "broadcast")         \
  V(Alltoall, 3, "alltoall")           \
  V(Reducescatter, 4, "reducescatter") \
  V(Barrier, 5, "barrier")             \
  V(SparseAllreduce, 6, "sparse_allreduce")

enum class Verb : uint8_t {
#define HVD_VERB_NUMBER(verb, number, text) k##verb = number,
  HVD_FOR_EACH_VERB(HVD_VERB_NUMBER)
#undef HVD_VERB_NUMBER
};
#define HVD_VERB_ONE(verb, number, text) +1
inline constexpr uint8_t kVerbCount = 0 HVD_FOR_EACH_VERB(HVD_VERB_ONE);
#undef HVD_VERB_ONE

enum class DataType : uint8_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kBfloat16 = 7,
  kFloat32 = 8,
  kFloat64 = 9,
  kBool = 10,
};
inline constexpr uint8_t kDataTypeCount = 11;

// The values are Horovod's, so that code that passes integers keeps working.
enum class ReduceOp : uint8_t {
  kAverage = 0,
  kSum = 1,
  // Weighs whole tensors by their dot products. Allreduces of floating point
  // alone have it. See transport/collectives/adasum_tree.h.
  kAdasum = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5,
};
inline constexpr uint8_t kReduceOpCount = 6;

// How the rows of a sparse allreduce travel. The result is the same.
enum class SparseAlgo : uint8_t {
  // For each tensor the one of the next two that sends less.
  kAuto = 0,
  // Every rank sends its rows to all. Each adds them up.
  kAllgather = 1,
  // Every row has an owner. It adds up the ranks' rows, and sends the result.
  kReduceScatter = 2,
  // As kAuto, of tables whose rows all ranks have all of, as zeros where they
  // had none. A kernel makes them so.
  kDense = 3,
};
inline constexpr uint8_t kSparseAlgoCount = 4;

[[nodiscard]] constexpr const char* Name(SparseAlgo algo) {
  switch (algo) {
    case SparseAlgo::kAuto:
      return "auto";
    case SparseAlgo::kAllgather:
      return "allgather";
    case SparseAlgo::kReduceScatter:
      return "reduce_scatter";
    case SparseAlgo::kDense:
      return "dense";
  }
  return "unknown";
}

// The memory of an entry's buffers.
enum class MemoryKind : uint8_t { kHost = 0, kCuda = 1 };
inline constexpr uint8_t kMemoryKindCount = 2;

using Shape = std::vector<int64_t>;

[[nodiscard]] constexpr size_t SizeOf(DataType dtype) {
  switch (dtype) {
    case DataType::kUint8:
    case DataType::kInt8:
    case DataType::kBool:
      return 1;
    case DataType::kUint16:
    case DataType::kInt16:
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return 2;
    case DataType::kInt32:
    case DataType::kFloat32:
      return 4;
    case DataType::kInt64:
    case DataType::kFloat64:
      return 8;
  }
  return 0;
}

[[nodiscard]] constexpr bool IsFloating(DataType dtype) {
  return dtype == DataType::kFloat16 || dtype == DataType::kBfloat16 ||
         dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
}

[[nodiscard]] constexpr const char* Name(DataType dtype) {
  switch (dtype) {
    case DataType::kUint8:
      return "uint8";
    case DataType::kInt8:
      return "int8";
    case DataType::kUint16:
      return "uint16";
    case DataType::kInt16:
      return "int16";
    case DataType::kInt32:
      return "int32";
    case DataType::kInt64:
      return "int64";
    case DataType::kFloat16:
      return "float16";
    case DataType::kBfloat16:
      return "bfloat16";
    case DataType::kFloat32:
      return "float32";
    case DataType::kFloat64:
      return "float64";
    case DataType::kBool:
      return "bool";
  }
  return "unknown dtype";
}

[[nodiscard]] constexpr const char* Name(Verb verb) {
  switch (verb) {
#define HVD_VERB_NAME(verb, number, text) \
  case Verb::k##verb:                     \
    return text;
    HVD_FOR_EACH_VERB(HVD_VERB_NAME)
#undef HVD_VERB_NAME
  }
  return "unknown verb";
}

[[nodiscard]] constexpr const char* Name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAverage:
      return "Average";
    case ReduceOp::kSum:
      return "Sum";
    case ReduceOp::kAdasum:
      return "Adasum";
    case ReduceOp::kMin:
      return "Min";
    case ReduceOp::kMax:
      return "Max";
    case ReduceOp::kProduct:
      return "Product";
  }
  return "unknown reduce op";
}

// The number of elements of a shape. 1 for a scalar.
[[nodiscard]] inline int64_t CountOf(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1},
                         [](int64_t a, int64_t b) { return a * b; });
}

// Such as "[2,3]", as TensorFlow prints shapes.
[[nodiscard]] inline std::string ToString(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ',';
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

}  // namespace hvd

#endif  // HVD_CORE_TYPES_H_
