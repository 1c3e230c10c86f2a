// SPDX-License-Identifier: Apache-2.0
// Arithmetic on host memory: cast, scale and reduce, element by element.
//
// Pure functions of their arguments. The same input gives the same bits on
// every rank, with every vector unit and in chunks of any size. Buffers need no
// alignment beyond their element's.
#ifndef HVD_CPU_ELEMENTWISE_H_
#define HVD_CPU_ELEMENTWISE_H_

#include <cstdint>
#include <vector>

#include "core/types.h"
#include "cpu/vector_unit.h"

namespace hvd {

// The integer type that averages of `dtype` are added in. It is wide enough for
// 32768 ranks. `dtype` itself, if it is no integer or there is no wider one.
[[nodiscard]] DataType AveragingType(DataType dtype);

// out = wire(in * prescale). Both types are floating, or wire_dtype is `dtype`
// or its AveragingType. Integers are multiplied in float64 and truncated
// towards zero. float16 and bfloat16 are multiplied in float32. `in` and `out`
// do not overlap unless they are equal and dtype == wire_dtype.
void Pack(DataType dtype, DataType wire_dtype, const void* in, void* out,
          int64_t count, double prescale, VectorUnit unit = BestVectorUnit());

// out = dtype(in), for the same pairs of types. What an integer type cannot
// hold becomes its nearest value.
void Unpack(DataType wire_dtype, DataType dtype, const void* in, void* out,
            int64_t count, VectorUnit unit = BestVectorUnit());

// What an average is of, if not of one rank's values in each block.
struct Averaged {
  // What the sum is divided by. 0: the number of blocks.
  int64_t ranks = 0;
  // What each block is multiplied by first. Empty: by 1.
  std::vector<int64_t> weights;
};

// How blocks become one.
struct BlockReduction {
  DataType dtype = DataType::kFloat32;  // not kBool
  ReduceOp op = ReduceOp::kSum;
  double postscale = 1.0;  // what the result is multiplied by
  Averaged averaged = {};  // of kAverage
};

// out = (blocks[0] op blocks[1] op ... op blocks[P-1]) * postscale, formed in
// the order of `blocks`. `out` may equal any block.
//
// - kAverage is a sum that is then divided. Integers are added in their
//   AveragingType. The quotient is truncated towards zero.
// - float16 and bfloat16 are added in float32 and rounded once.
// - kAdasum is for one block alone, which stays as it is.
// - Min and Max hand NaN on, as numpy.minimum does.
// - Integer sums wrap around.
void ReduceBlocks(const BlockReduction& reduction,
                  const std::vector<const void*>& blocks, void* out,
                  int64_t count, VectorUnit unit = BestVectorUnit());

// Fills `out` with the value that changes nothing in a reduction: 0 in a sum, 1
// in a product, the greatest value in a minimum. Not for kBool.
void FillIdentity(DataType dtype, ReduceOp op, void* out, int64_t count);

// An allreduce among one rank: out = dtype(wire(in * prescale) * postscale).
void AllreduceAlone(DataType dtype, DataType wire_dtype, ReduceOp op,
                    const void* in, void* out, int64_t count, double prescale,
                    double postscale);

}  // namespace hvd

#endif  // HVD_CPU_ELEMENTWISE_H_
