// SPDX-License-Identifier: Apache-2.0
// VectorUnit: the widest vectors that code may use on this processor.
#ifndef HVD_CPU_VECTOR_UNIT_H_
#define HVD_CPU_VECTOR_UNIT_H_

namespace hvd {

// kBaseline is what the compiler's target has. The unit is chosen at run time,
// so that a library built on one machine runs on another.
enum class VectorUnit { kBaseline, kAvx2, kAvx512 };

[[nodiscard]] inline VectorUnit BestVectorUnit() {
#if defined(__x86_64__)
  static const VectorUnit best = [] {
    if (__builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
      return VectorUnit::kAvx512;
    }
    return __builtin_cpu_supports("avx2") ? VectorUnit::kAvx2
                                          : VectorUnit::kBaseline;
  }();
  return best;
#else
  return VectorUnit::kBaseline;
#endif
}

// Calls body(), compiled for `unit`. The functions that it calls are compiled
// into it, unless they are in other files. With GCC that holds at any depth.
#if defined(__x86_64__)
template <typename Body>
[[gnu::flatten, gnu::target("avx2")]] void RunWithAvx2(const Body& body) {
  body();
}
template <typename Body>
[[gnu::flatten, gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] void
RunWithAvx512(const Body& body) {
  body();
}
#endif

template <typename Body>
void RunWith(VectorUnit unit, const Body& body) {
#if defined(__x86_64__)
  if (unit == VectorUnit::kAvx512) return RunWithAvx512(body);
  if (unit == VectorUnit::kAvx2) return RunWithAvx2(body);
#endif
  body();
}

}  // namespace hvd

#endif  // HVD_CPU_VECTOR_UNIT_H_
