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

enum class Verb : uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
};
inline constexpr uint8_t kVerbCount = 3;

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

// The values are Horovod's, so that code that passes integers keeps working. 2
// is Adasum in Horovod, so it stays unused.
enum class ReduceOp : uint8_t {
  kAverage = 0,
  kSum = 1,
  kMin = 3,
  kMax = 4,
  kProduct = 5,
};

// The memory of an entry's buffers.
enum class MemoryKind : uint8_t { kHost = 0, kCuda = 1 };

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
    case Verb::kAllreduce:
      return "allreduce";
    case Verb::kAllgather:
      return "allgather";
    case Verb::kBroadcast:
      return "broadcast";
  }
  return "unknown verb";
}

[[nodiscard]] constexpr const char* Name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAverage:
      return "Average";
    case ReduceOp::kSum:
      return "Sum";
    case ReduceOp::kMin:
      return "Min";
    case ReduceOp::kMax:
      return "Max";
    case ReduceOp::kProduct:
      return "Product";
  }
  return "unknown reduce op";
}

[[nodiscard]] constexpr bool IsValid(ReduceOp op) {
  return op == ReduceOp::kAverage || op == ReduceOp::kSum ||
         op == ReduceOp::kMin || op == ReduceOp::kMax ||
         op == ReduceOp::kProduct;
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
