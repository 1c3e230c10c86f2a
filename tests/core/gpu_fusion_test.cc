// SPDX-License-Identifier: Apache-2.0
// GpuFusion: what becomes of averages whose sums are in float16.
#include "transport/device/gpu_fusion.h"

#include <cmath>

#include "cpu/float16.h"
#include "harness.h"

namespace hvd {
namespace {

float Rounded(double value) {
  return ConvertFloat<float>(ConvertFloat<Float16>(static_cast<float>(value)));
}

// The average of so many ranks that all have this value, as GPUs add in the
// wire's type.
double Average(int ranks, double value) {
  Batch batch;
  batch.memory = MemoryKind::kCuda;
  batch.wire_dtype = DataType::kFloat16;
  batch.reduce_op = ReduceOp::kAverage;
  Segment& segment = batch.segments.emplace_back();
  segment.count = segment.rows = 1;
  char buffer[64];
  const GpuFusion fusion = FuseInto(buffer, batch, ranks);
  const float input = Rounded(Rounded(value) * fusion.pack.scale);
  float sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum = Rounded(sum + input);
  return sum * fusion.unpack.scale;
}

TEST(small_values_of_many_ranks_are_not_lost) {
  for (const int ranks : {2, 3, 8, 64, 100, 256}) {
    EXPECT_NEAR(Average(ranks, 1e-6) / 1e-6, 1.0, 0.25);
    EXPECT_NEAR(Average(ranks, 1e-4) / 1e-4, 1.0, 0.1);
    EXPECT_NEAR(Average(ranks, 0.5), 0.5, 0.02);
  }
}

TEST(sums_may_be_larger_than_the_type) {
  EXPECT_NEAR(Average(2, 60000.0) / 60000, 1.0, 1e-3);
  EXPECT_NEAR(Average(64, 8000.0) / 8000, 1.0, 0.02);
  // Here half of the divisor is too little.
  EXPECT_TRUE(std::isinf(Average(64, 10000.0)));
}

}  // namespace
}  // namespace hvd
