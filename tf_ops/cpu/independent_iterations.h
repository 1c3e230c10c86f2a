// SPDX-License-Identifier: Apache-2.0
// HVD_INDEPENDENT_ITERATIONS, before a loop: no iteration reads what another
// one writes, so compilers may use vectors.
#ifndef HVD_CPU_INDEPENDENT_ITERATIONS_H_
#define HVD_CPU_INDEPENDENT_ITERATIONS_H_

#if defined(__clang__)
#define HVD_INDEPENDENT_ITERATIONS \
  _Pragma("clang loop vectorize(assume_safety)")
#else
#define HVD_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

#endif  // HVD_CPU_INDEPENDENT_ITERATIONS_H_
