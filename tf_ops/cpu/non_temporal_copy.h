// SPDX-License-Identifier: Apache-2.0
// NonTemporalCopy: a copy to memory that nobody reads soon.
#ifndef HVD_CPU_NON_TEMPORAL_COPY_H_
#define HVD_CPU_NON_TEMPORAL_COPY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace hvd {

// Like std::memcpy, but with non-temporal stores where the processor has them.
// They write the lines of `out` without reading them first, and evict nothing
// from the cache. It is faster where `out` is larger than the cache and `in` is
// in it.
inline void NonTemporalCopy(void* out, const void* in, size_t bytes) {
#if defined(__SSE2__)
  constexpr size_t kLine = 64, kVector = sizeof(__m128i);
  auto* to = static_cast<std::byte*>(out);
  const auto* from = static_cast<const std::byte*>(in);
  const size_t head = -reinterpret_cast<uintptr_t>(to) % kLine;
  if (bytes < head + kLine) {
    std::memcpy(out, in, bytes);
    return;
  }
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    for (size_t i = 0; i < kLine; i += kVector) {
      _mm_stream_si128(
          reinterpret_cast<__m128i*>(to + at + i),
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + i)));
    }
  }
  std::memcpy(to + at, from + at, bytes - at);
  // A release, such as the one that hands `out` on, does not order these
  // stores.
  _mm_sfence();
#else
  std::memcpy(out, in, bytes);
#endif
}

}  // namespace hvd

#endif  // HVD_CPU_NON_TEMPORAL_COPY_H_
