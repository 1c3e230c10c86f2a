// SPDX-License-Identifier: Apache-2.0
// A loop that compilers vectorise, for each floating-point type.
#include "cpu/finite.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/quoted.h"
#include "cpu/elementwise.h"
#include "cpu/vector_unit.h"

namespace hvd {
namespace {

// Elements that are packed at a time. They stay in the first-level cache.
constexpr int64_t kTile = 1024;

// NaN and infinity are the values that have all bits of the exponent. Vector
// units find a maximum faster than they compare and add up.
template <typename Bits>
bool NoneHas(Bits exponent, const void* data, int64_t count) {
  const auto* const from = static_cast<const std::byte*>(data);
  Bits most = 0;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, from + i * static_cast<int64_t>(sizeof(bits)),
                sizeof(bits));
    most = std::max(most, static_cast<Bits>(bits & exponent));
  }
  return most != exponent;
}

}  // namespace

bool AllFinite(DataType dtype, const void* data, int64_t count) {
  bool is_finite = true;
  RunWith(BestVectorUnit(), [&] {
    switch (dtype) {
      case DataType::kFloat16:
        is_finite = NoneHas(uint16_t{0x7c00}, data, count);
        break;
      case DataType::kBfloat16:
        is_finite = NoneHas(uint16_t{0x7f80}, data, count);
        break;
      case DataType::kFloat32:
        is_finite = NoneHas(uint32_t{0x7f800000}, data, count);
        break;
      case DataType::kFloat64:
        is_finite = NoneHas(uint64_t{0x7ff0000000000000}, data, count);
        break;
      default:
        break;
    }
  });
  return is_finite;
}

bool AllFiniteOnWire(DataType dtype, DataType wire_dtype, const void* in,
                     int64_t count, double prescale) {
  if (dtype == wire_dtype && prescale == 1.0) {
    return AllFinite(dtype, in, count);
  }
  std::byte space[kTile * sizeof(double)];
  const auto bytes = static_cast<int64_t>(SizeOf(dtype));
  for (int64_t at = 0; at < count; at += kTile) {
    const int64_t length = std::min(kTile, count - at);
    Pack(dtype, wire_dtype, static_cast<const std::byte*>(in) + at * bytes,
         space, length, prescale);
    if (!AllFinite(wire_dtype, space, length)) return false;
  }
  return true;
}

Status NotFinite(int rank, const std::string& tensor, int input,
                 int input_count) {
  std::string text = "rank " + std::to_string(rank) +
                     " has a NaN or an infinity in " + Quoted(tensor);
  if (input_count > 1) {
    text += " (input " + std::to_string(input) + " of " +
            std::to_string(input_count) + ", from 0)";
  }
  return Status(StatusCode::kInvalidArgument,
                text + "; HVD_CHECK_NUMERICS=1 makes this an error.",
                {CauseKind::kNotFinite, rank, tensor});
}

}  // namespace hvd
