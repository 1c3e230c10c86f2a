// SPDX-License-Identifier: Apache-2.0
// Fusion: what travels together, in which order, up to the threshold.
#include "core/control/fusion.h"

#include "harness.h"

namespace hvd {
namespace {

using Plan = std::vector<std::vector<size_t>>;

TEST(fusion_joins_alike_tensors_in_order) {
  Signature f32, f64, minimum;
  f64.dtype = f64.wire_dtype = DataType::kFloat64;
  minimum.reduce_op = ReduceOp::kMin;
  EXPECT_TRUE((PlanFusion({{&f32, 4}, {&f64, 8}, {&f32, 4}, {&minimum, 4}},
                          100) == Plan{{0, 2}, {1}, {3}}));
}

TEST(fusion_keeps_apart_what_differs_in_scale_wire_or_root) {
  Signature plain, scaled, half, root0, root1;
  scaled.postscale = 0.5;
  half.wire_dtype = DataType::kFloat16;
  root0.verb = root1.verb = Verb::kBroadcast;
  root1.root = 1;
  EXPECT_EQ(
      PlanFusion(
          {{&plain, 4}, {&scaled, 4}, {&half, 4}, {&root0, 4}, {&root1, 4}},
          100)
          .size(),
      5u);
}

TEST(fusion_moves_of_bytes_join_whatever_the_dtype) {
  Signature a, b;
  a.verb = b.verb = Verb::kBroadcast;
  b.dtype = b.wire_dtype = DataType::kInt64;
  EXPECT_TRUE((PlanFusion({{&a, 4}, {&b, 8}}, 100) == Plan{{0, 1}}));
  a.verb = b.verb = Verb::kAllgather;
  EXPECT_TRUE((PlanFusion({{&a, 4}, {&b, 8}}, 100) == Plan{{0, 1}}));
}

TEST(fusion_stops_at_the_threshold) {
  Signature f32;
  EXPECT_TRUE(
      (PlanFusion({{&f32, 60}, {&f32, 40}, {&f32, 1}, {&f32, 200}, {&f32, 1}},
                  100) == Plan{{0, 1}, {2}, {3}, {4}}));
  EXPECT_TRUE((PlanFusion({{&f32, 4}, {&f32, 4}}, 0) == Plan{{0}, {1}}));
  EXPECT_TRUE((PlanFusion({}, 100) == Plan{}));
}

}  // namespace
}  // namespace hvd
