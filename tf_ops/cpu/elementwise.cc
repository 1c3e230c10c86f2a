// SPDX-License-Identifier: Apache-2.0
// Loops that compilers vectorise, over tiles that stay in the cache.
#include "cpu/elementwise.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/element_loops.h"

namespace hvd {
namespace {

using element_loops::Add;
using element_loops::Averaging;
using element_loops::Combine;
using element_loops::Compute;
using element_loops::Convert;
using element_loops::Divide;
using element_loops::Load;
using element_loops::Scale;
using element_loops::WithType;
using element_loops::Wrapping;

// Elements of a tile. Between its reading and its writing it stays in the
// first-level cache.
constexpr int64_t kTile = 1024;

// Whether elements of one type may cross the wire as the other.
template <typename A, typename B>
inline constexpr bool kConvertible =
    std::is_integral_v<A> ? std::is_same_v<A, Averaging<B>> ||
                                std::is_same_v<B, Averaging<A>> ||
                                std::is_same_v<A, B>
                          : !std::is_integral_v<B>;

// WithType for two types, if one may cross the wire as the other.
template <typename Visit>
void WithTypes(DataType from, DataType to, Visit visit) {
  WithType(from, [&](auto a) {
    using A = decltype(a);
    WithType(to, [&](auto b) {
      using B = decltype(b);
      if constexpr (kConvertible<A, B>) visit(A(), B());
    });
  });
}

// --- Operators beside Add ---

struct Multiply {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) *
                            static_cast<Wrapping<T>>(b));
    } else {
      return a * b;
    }
  }
};
// NaN is handed on: only there a != a.
struct Smaller {
  template <typename T>
  T operator()(T a, T b) const {
    return ((a <= b) | (a != a)) ? a : b;
  }
};
struct Larger {
  template <typename T>
  T operator()(T a, T b) const {
    return ((a >= b) | (a != a)) ? a : b;
  }
};

template <typename Visit>
void WithOperator(ReduceOp op, Visit visit) {
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
    case ReduceOp::kAdasum:
      return visit(Add());
    case ReduceOp::kMin:
      return visit(Smaller());
    case ReduceOp::kMax:
      return visit(Larger());
    case ReduceOp::kProduct:
      return visit(Multiply());
  }
}

// --- A whole buffer ---

// Computes in C. `averaged` is null if it is no average.
template <typename T, typename C, typename Operator>
void Reduce(const std::vector<const void*>& blocks, void* out, int64_t count,
            const Averaged* averaged, double postscale, Operator op) {
  C sum_space[kTile], load_space[kTile];
  const int64_t last = static_cast<int64_t>(blocks.size()) - 1;
  const int64_t ranks = averaged == nullptr   ? 0
                        : averaged->ranks > 0 ? averaged->ranks
                                              : last + 1;
  const bool weighs = averaged != nullptr && !averaged->weights.empty();
  const bool finishes = ranks > 0 || postscale != 1.0;
  for (int64_t at = 0; at < count; at += kTile) {
    const int64_t length = std::min(kTile, count - at);
    T* const target = static_cast<T*>(out) + at;
    const auto load = [&](int64_t i, C* space) {
      const C* values =
          Load(static_cast<const T*>(blocks[i]) + at, space, length);
      if (!weighs) return values;
      Scale(values, space, length, static_cast<double>(averaged->weights[i]));
      return static_cast<const C*>(space);
    };
    const C* sum = load(0, sum_space);
    for (int64_t i = 1; i <= last; ++i) {
      C* to = sum_space;
      // Nothing is read after the last sum. So it may go to where the result
      // belongs, and `out` may be any block.
      if constexpr (std::is_same_v<T, C>) {
        if (i == last && !finishes) to = target;
      }
      Combine(sum, load(i, load_space), to, length, op);
      sum = to;
    }
    if (finishes) {
      if (sum != sum_space) Convert(sum, sum_space, length);
      if (ranks > 0) Divide(sum_space, length, ranks);
      if (postscale != 1.0) Scale(sum_space, sum_space, length, postscale);
      sum = sum_space;
    }
    Convert(sum, target, length);
  }
}

// float16 and bfloat16 are scaled in float32, everything else as it is.
template <typename From, typename To>
void ScaleAndConvert(const From* in, To* out, int64_t count, double scale) {
  using C = Compute<From>;
  C space[kTile];
  for (int64_t at = 0; at < count; at += kTile) {
    const int64_t length = std::min(kTile, count - at);
    Scale(Load(in + at, space, length), space, length, scale);
    Convert(space, out + at, length);
  }
}

// The value of FillIdentity, in the type that T is computed in.
template <typename C>
C IdentityOf(ReduceOp op) {
  using Limits = std::numeric_limits<C>;
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
    case ReduceOp::kAdasum:
      return C(0);
    case ReduceOp::kMin:
      return Limits::has_infinity ? Limits::infinity() : Limits::max();
    case ReduceOp::kMax:
      return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    case ReduceOp::kProduct:
      return C(1);
  }
  return C(0);
}

}  // namespace

DataType AveragingType(DataType dtype) {
  switch (dtype) {
    case DataType::kUint8:
    case DataType::kInt8:
    case DataType::kUint16:
    case DataType::kInt16:
      return DataType::kInt32;
    case DataType::kInt32:
      return DataType::kInt64;
    default:
      return dtype;
  }
}

void Pack(DataType dtype, DataType wire_dtype, const void* in, void* out,
          int64_t count, double prescale, VectorUnit unit) {
  if (prescale == 1.0) return Unpack(dtype, wire_dtype, in, out, count, unit);
  RunWith(unit, [&] {
    WithTypes(dtype, wire_dtype, [&](auto from, auto to) {
      ScaleAndConvert(static_cast<const decltype(from)*>(in),
                      static_cast<decltype(to)*>(out), count, prescale);
    });
  });
}

void Unpack(DataType wire_dtype, DataType dtype, const void* in, void* out,
            int64_t count, VectorUnit unit) {
  if (wire_dtype == dtype) {
    if (in != out && count > 0) {
      std::memcpy(out, in, static_cast<size_t>(count) * SizeOf(dtype));
    }
    return;
  }
  RunWith(unit, [&] {
    WithTypes(wire_dtype, dtype, [&](auto from, auto to) {
      Convert(static_cast<const decltype(from)*>(in),
              static_cast<decltype(to)*>(out), count);
    });
  });
}

void ReduceBlocks(const BlockReduction& reduction,
                  const std::vector<const void*>& blocks, void* out,
                  int64_t count, VectorUnit unit) {
  RunWith(unit, [&] {
    WithType(reduction.dtype, [&](auto type) {
      using T = decltype(type);
      if (reduction.op == ReduceOp::kAverage) {
        return Reduce<T, Averaging<T>>(blocks, out, count, &reduction.averaged,
                                       reduction.postscale, Add());
      }
      WithOperator(reduction.op, [&](auto combine) {
        Reduce<T, Compute<T>>(blocks, out, count, nullptr, reduction.postscale,
                              combine);
      });
    });
  });
}

void FillIdentity(DataType dtype, ReduceOp op, void* out, int64_t count) {
  WithType(dtype, [&](auto type) {
    using T = decltype(type);
    const Compute<T> value = IdentityOf<Compute<T>>(op);
    T identity;
    Convert(&value, &identity, 1);
    std::fill_n(static_cast<T*>(out), count, identity);
  });
}

void AllreduceAlone(DataType dtype, DataType wire_dtype, ReduceOp op,
                    const void* in, void* out, int64_t count, double prescale,
                    double postscale) {
  std::byte space[kTile * sizeof(double)];
  const BlockReduction reduction{wire_dtype, op, postscale};
  const int64_t bytes = static_cast<int64_t>(SizeOf(dtype));
  for (int64_t at = 0; at < count; at += kTile) {
    const int64_t length = std::min(kTile, count - at);
    const auto* from = static_cast<const std::byte*>(in) + at * bytes;
    auto* to = static_cast<std::byte*>(out) + at * bytes;
    Pack(dtype, wire_dtype, from, space, length, prescale);
    ReduceBlocks(reduction, {space}, space, length);
    Unpack(wire_dtype, dtype, space, to, length);
  }
}

}  // namespace hvd
