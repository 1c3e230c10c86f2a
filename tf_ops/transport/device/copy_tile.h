// SPDX-License-Identifier: Apache-2.0
// What each thread of a block does to copy a tile: move, or scale and convert.
//
// Most memory is read and written 16 bytes at a time, whatever the alignment.
// Neighbouring threads touch neighbouring memory. Vendor-free: the same
// functions run in kernels and, in tests, on the host.
#ifndef HVD_TRANSPORT_DEVICE_COPY_TILE_H_
#define HVD_TRANSPORT_DEVICE_COPY_TILE_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/float16.h"
#include "cpu/host_device.h"

namespace hvd {

// A thread of those that share a tile.
struct TileThread {
  int64_t number;
  int64_t count;
};

namespace copy_tile {

inline constexpr int kAccessBytes = 16;
// How many accesses a thread has under way: it reads them all, then writes.
inline constexpr int kInFlight = 4;

// Some bytes that are moved by one instruction. It may stand for any type.
template <int kBytes>
struct UnitType;
template <>
struct UnitType<1> {
  using type = uint8_t;
};
template <>
struct UnitType<2> {
  typedef uint16_t type __attribute__((may_alias));
};
template <>
struct UnitType<4> {
  typedef uint32_t type __attribute__((may_alias));
};
template <>
struct UnitType<8> {
  typedef uint64_t type __attribute__((may_alias));
};
template <>
struct UnitType<16> {
  struct [[gnu::may_alias]] alignas(16) type {
    uint64_t low, high;
  };
};
template <int kBytes>
using Unit = typename UnitType<kBytes>::type;

// The distance to the next multiple of 16 bytes.
HVD_HOST_DEVICE inline int64_t BytesToBoundary(const void* place) {
  return static_cast<int64_t>(-reinterpret_cast<uintptr_t>(place) %
                              kAccessBytes);
}

HVD_HOST_DEVICE inline bool IsAligned(const void* place, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(place) % bytes == 0;
}

// Copies `kBytes` between places that are as aligned as `kUnit` demands. A GPU
// faults where they are not. A host would not, so there it is checked.
template <int kBytes, int kUnit>
HVD_HOST_DEVICE inline void MoveUnits(const void* from, void* to) {
#ifdef __CUDA_ARCH__
  for (int i = 0; i < kBytes / kUnit; ++i) {
    static_cast<Unit<kUnit>*>(to)[i] = static_cast<const Unit<kUnit>*>(from)[i];
  }
#else
  if (!IsAligned(from, kUnit) || !IsAligned(to, kUnit)) __builtin_trap();
  std::memcpy(to, from, kBytes);
#endif
}

// Copies `groups` times 16 bytes to a place of that alignment. `from` is as
// aligned as `kUnit` demands.
template <int kUnit>
HVD_HOST_DEVICE inline void MoveGroups(const unsigned char* from,
                                       unsigned char* to, int64_t groups,
                                       TileThread thread) {
  alignas(kAccessBytes) unsigned char group[kInFlight][kAccessBytes];
  int64_t i = thread.number;
  for (; i + (kInFlight - 1) * thread.count < groups;
       i += kInFlight * thread.count) {
    for (int k = 0; k < kInFlight; ++k) {
      MoveUnits<kAccessBytes, kUnit>(
          from + (i + k * thread.count) * kAccessBytes, group[k]);
    }
    for (int k = 0; k < kInFlight; ++k) {
      MoveUnits<kAccessBytes, kAccessBytes>(
          group[k], to + (i + k * thread.count) * kAccessBytes);
    }
  }
  for (; i < groups; i += thread.count) {
    MoveUnits<kAccessBytes, kUnit>(from + i * kAccessBytes, group[0]);
    MoveUnits<kAccessBytes, kAccessBytes>(group[0], to + i * kAccessBytes);
  }
}

// ConvertFloat, by a GPU's own instructions where it has them. They give the
// same bits, but for which NaN a NaN becomes.
template <typename To, typename From>
HVD_HOST_DEVICE inline To ConvertHere(From value) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<From, Float16> && std::is_same_v<To, float>) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
  } else if constexpr (std::is_same_v<From, float> &&
                       std::is_same_v<To, Float16>) {
    Float16 narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(value));
    return narrow;
  } else if constexpr (std::is_same_v<From, float> &&
                       std::is_same_v<To, Bfloat16>) {
    Bfloat16 narrow;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(value));
    return narrow;
  } else {
    return ConvertFloat<To>(value);
  }
#else
  return ConvertFloat<To>(value);
#endif
}

}  // namespace copy_tile

// Copies bytes. Any alignment will do.
HVD_HOST_DEVICE inline void MoveTile(const void* from, void* to, int64_t bytes,
                                     TileThread thread) {
  using namespace copy_tile;
  const auto* const in = static_cast<const unsigned char*>(from);
  auto* const out = static_cast<unsigned char*>(to);
  const int64_t boundary = BytesToBoundary(out);
  const int64_t head = boundary < bytes ? boundary : bytes;
  const int64_t groups = (bytes - head) / kAccessBytes;
  const unsigned char* const in_groups = in + head;
  if (IsAligned(in_groups, 16)) {
    MoveGroups<16>(in_groups, out + head, groups, thread);
  } else if (IsAligned(in_groups, 8)) {
    MoveGroups<8>(in_groups, out + head, groups, thread);
  } else if (IsAligned(in_groups, 4)) {
    MoveGroups<4>(in_groups, out + head, groups, thread);
  } else if (IsAligned(in_groups, 2)) {
    MoveGroups<2>(in_groups, out + head, groups, thread);
  } else {
    MoveGroups<1>(in_groups, out + head, groups, thread);
  }
  for (int64_t i = thread.number; i < head; i += thread.count) out[i] = in[i];
  const int64_t tail = head + groups * kAccessBytes;
  for (int64_t i = tail + thread.number; i < bytes; i += thread.count) {
    out[i] = in[i];
  }
}

// to = To(from * scale), with the bits of Pack in cpu/elementwise.h, but for
// which NaN a NaN becomes. Both types are floating: float, double, Float16 or
// Bfloat16. Elements are aligned as their type demands.
template <typename From, typename To>
HVD_HOST_DEVICE void ConvertTile(const From* from, To* to, int64_t count,
                                 double scale, TileThread thread) {
  using namespace copy_tile;
  using C = typename ComputeType<From>::type;
  const C factor = static_cast<C>(scale);
  const auto converted = [factor](From value) {
    return ConvertHere<To>(static_cast<C>(ConvertHere<C>(value) * factor));
  };
  // A group is one access of the narrower type, and some of the wider.
  constexpr int kNarrower =
      sizeof(From) < sizeof(To) ? sizeof(From) : sizeof(To);
  constexpr int kGroup = kAccessBytes / kNarrower;
  const int64_t boundary =
      BytesToBoundary(to) / static_cast<int64_t>(sizeof(To));
  const int64_t head = boundary < count ? boundary : count;
  const int64_t groups = (count - head) / kGroup;
  const bool is_aligned = IsAligned(from + head, kAccessBytes);
  for (int64_t i = thread.number; i < groups; i += thread.count) {
    const From* const in = from + head + i * kGroup;
    alignas(kAccessBytes) From values[kGroup];
    alignas(kAccessBytes) To results[kGroup];
    if (is_aligned) {
      MoveUnits<kGroup * sizeof(From), kAccessBytes>(in, values);
    } else {
      MoveUnits<kGroup * sizeof(From), sizeof(From)>(in, values);
    }
    for (int j = 0; j < kGroup; ++j) results[j] = converted(values[j]);
    MoveUnits<kGroup * sizeof(To), kAccessBytes>(results,
                                                 to + head + i * kGroup);
  }
  for (int64_t i = thread.number; i < head; i += thread.count) {
    to[i] = converted(from[i]);
  }
  const int64_t tail = head + groups * kGroup;
  for (int64_t i = tail + thread.number; i < count; i += thread.count) {
    to[i] = converted(from[i]);
  }
}

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_COPY_TILE_H_
