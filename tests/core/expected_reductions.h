// SPDX-License-Identifier: Apache-2.0
// What allreduces of sample values must give, computed once for all ranks and
// all worlds: it costs more than the allreduces.
#ifndef HVD_TESTS_CORE_EXPECTED_REDUCTIONS_H_
#define HVD_TESTS_CORE_EXPECTED_REDUCTIONS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "core/types.h"

namespace hvd {

// One allreduce of SampleValue over ranks 0 to ranks - 1.
struct SampledReduction {
  DataType dtype;
  DataType wire_dtype;
  ReduceOp op;
  int ranks;
  double prescale;
  double postscale;
};

// ExpectedReduction of elements 0 to count - 1. From any thread.
std::shared_ptr<const std::vector<double>> ExpectedReductions(
    const SampledReduction& reduction, int64_t count);

}  // namespace hvd

#endif  // HVD_TESTS_CORE_EXPECTED_REDUCTIONS_H_
