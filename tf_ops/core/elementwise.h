// SPDX-License-Identifier: Apache-2.0
// Arithmetic on host memory: cast, scale and reduce, element by element.
//
// Pure functions of their arguments: same input, same bits, on every rank, with
// every vector unit and whatever the chunk. Buffers need no alignment beyond
// their element's.
#ifndef HVD_CORE_ELEMENTWISE_H_
#define HVD_CORE_ELEMENTWISE_H_

#include <cstdint>
#include <vector>

#include "core/types.h"
#include "core/vector_unit.h"

namespace hvd {

// out = wire(in * prescale). Integers are multiplied in float64 and truncated
// towards zero; float16 and bfloat16 in float32. `in` and `out` do not overlap
// unless they are equal and dtype == wire_dtype.
void Pack(DataType dtype, DataType wire_dtype, const void* in, void* out,
          int64_t count, double prescale, VectorUnit unit = BestVectorUnit());

// out = dtype(in).
void Unpack(DataType wire_dtype, DataType dtype, const void* in, void* out,
            int64_t count, VectorUnit unit = BestVectorUnit());

// out = (blocks[0] op blocks[1] op ... op blocks[P-1]) * postscale, formed in
// the order of `blocks`, with kAverage as a sum that is then divided by
// `ranks`, 0 standing for the number of blocks (integers: division truncating
// towards zero). float16 and
// bfloat16 accumulate in float32 and are rounded once. Min and Max hand NaN on,
// as numpy.minimum does. Integer sums wrap around. `out` may equal any block.
// Not for kBool.
void ReduceBlocks(DataType dtype, ReduceOp op,
                  const std::vector<const void*>& blocks, void* out,
                  int64_t count, double postscale,
                  VectorUnit unit = BestVectorUnit(), int64_t ranks = 0);

// An allreduce among one rank: out = dtype(wire(in * prescale) * postscale).
void AllreduceAlone(DataType dtype, DataType wire_dtype, ReduceOp op,
                    const void* in, void* out, int64_t count, double prescale,
                    double postscale);

}  // namespace hvd

#endif  // HVD_CORE_ELEMENTWISE_H_
