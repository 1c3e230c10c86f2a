// SPDX-License-Identifier: Apache-2.0
// Looks for NaN and infinity in host memory.
#ifndef HVD_CPU_FINITE_H_
#define HVD_CPU_FINITE_H_

#include <cstdint>
#include <string>

#include "core/status.h"
#include "core/types.h"

namespace hvd {

// Whether no element is NaN or infinite. True of integers.
[[nodiscard]] bool AllFinite(DataType dtype, const void* data, int64_t count);

// The same of the elements as they would cross a wire: wire(in * prescale), as
// Pack forms them.
[[nodiscard]] bool AllFiniteOnWire(DataType dtype, DataType wire_dtype,
                                   const void* in, int64_t count,
                                   double prescale);

// The failure of a call on every rank, because `rank` of the job has such an
// element. `input` of the call's `input_count` inputs has it.
[[nodiscard]] Status NotFinite(int rank, const std::string& tensor, int input,
                               int input_count);

}  // namespace hvd

#endif  // HVD_CPU_FINITE_H_
