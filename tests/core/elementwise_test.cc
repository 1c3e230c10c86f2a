// SPDX-License-Identifier: Apache-2.0
// elementwise.h against float64 and exact integers.
#include "cpu/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "cpu/float16.h"
#include "harness.h"
#include "typed_values.h"
#include "vector_units.h"

namespace hvd {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(converted_buffers_equal_converted_elements) {
  std::mt19937 random(1);
  std::vector<float> in(5000);
  for (float& value : in) {
    value = std::ldexp(static_cast<float>(random()) / 4e9f - 0.5f,
                       static_cast<int>(random() % 60) - 40);
  }
  std::vector<uint16_t> half(in.size()), brain(in.size());
  std::vector<float> back(in.size());
  const int64_t count = static_cast<int64_t>(in.size());
  Pack(DataType::kFloat32, DataType::kFloat16, in.data(), half.data(), count,
       1.0);
  Pack(DataType::kFloat32, DataType::kBfloat16, in.data(), brain.data(), count,
       3.0);
  Unpack(DataType::kFloat16, DataType::kFloat32, half.data(), back.data(),
         count);
  for (size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(half[i], ToFloat16(in[i]).bits);
    EXPECT_EQ(brain[i], ToBfloat16(in[i] * 3.0f).bits);
    EXPECT_EQ(back[i], ToFloat(ToFloat16(in[i])));
  }
}

// Blocks of `ranks` ranks at addresses aligned to their element only.
struct Blocks {
  Blocks(DataType dtype, int ranks, int64_t count, ReduceOp op) {
    const size_t size = SizeOf(dtype);
    for (int rank = 0; rank < ranks; ++rank) {
      memory.emplace_back((count + 1) * size);
      void* data = memory.back().data() + size;
      for (int64_t i = 0; i < count; ++i) {
        PutValue(dtype, data, i, SampleValue(dtype, op, rank, i));
      }
      addresses.push_back(data);
    }
  }
  std::vector<std::vector<char>> memory;
  std::vector<const void*> addresses;
};

TEST(reductions_equal_the_reference) {
  for (DataType dtype : kReducedTypes) {
    for (ReduceOp op : kReduceOps) {
      for (int ranks : {1, 2, 3, 8}) {
        for (int64_t count : {0, 1, 7, 1023, 1024, 1025, 3000}) {
          for (double postscale : {1.0, 0.25, 3.0}) {
            const Blocks blocks(dtype, ranks, count, op);
            std::vector<char> out(count * SizeOf(dtype) + 1);
            ReduceBlocks({dtype, op, postscale}, blocks.addresses, out.data(),
                         count);
            for (int64_t i = 0; i < count; ++i) {
              const double expected =
                  ExpectedReduction(dtype, dtype, op, ranks, i, 1.0, postscale);
              EXPECT_NEAR(GetValue(dtype, out.data(), i), expected,
                          std::abs(expected) * Epsilon(dtype));
            }
          }
        }
      }
    }
  }
}

TEST(out_may_be_any_block) {
  constexpr int64_t kCount = 2100;
  for (DataType dtype : kReducedTypes) {
    for (double postscale : {1.0, 2.0}) {
      for (int alias = 0; alias < 4; ++alias) {
        Blocks apart(dtype, 4, kCount, ReduceOp::kSum);
        Blocks aliased(dtype, 4, kCount, ReduceOp::kSum);
        std::vector<char> out(kCount * SizeOf(dtype));
        ReduceBlocks({dtype, ReduceOp::kSum, postscale}, apart.addresses,
                     out.data(), kCount);
        void* const target = aliased.memory[alias].data() + SizeOf(dtype);
        ReduceBlocks({dtype, ReduceOp::kSum, postscale}, aliased.addresses,
                     target, kCount);
        EXPECT_EQ(std::memcmp(out.data(), target, out.size()), 0);
      }
    }
  }
}

TEST(sums_are_formed_in_rank_order) {
  constexpr int64_t kCount = 4000;
  constexpr int kRanks = 5;
  std::mt19937 random(7);
  std::vector<std::vector<float>> blocks(kRanks, std::vector<float>(kCount));
  for (auto& block : blocks) {
    for (float& value : block) {
      value = std::ldexp(static_cast<float>(random()) / 4e9f - 0.5f,
                         static_cast<int>(random() % 30));
    }
  }
  std::vector<const void*> addresses;
  for (auto& block : blocks) addresses.push_back(block.data());
  std::vector<float> whole(kCount), chunks(kCount);
  ReduceBlocks({DataType::kFloat32, ReduceOp::kAverage, 0.7}, addresses,
               whole.data(), kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    float sum = blocks[0][i];
    for (int rank = 1; rank < kRanks; ++rank) sum += blocks[rank][i];
    EXPECT_EQ(whole[i], sum / 5.0f * 0.7f);
  }
  // Cut anywhere, the bits are the same.
  for (int64_t at = 0; at < kCount;) {
    const int64_t length = std::min<int64_t>(
        1 + static_cast<int64_t>(random() % 700), kCount - at);
    std::vector<const void*> starts;
    for (auto& block : blocks) starts.push_back(block.data() + at);
    ReduceBlocks({DataType::kFloat32, ReduceOp::kAverage, 0.7}, starts,
                 chunks.data() + at, length);
    at += length;
  }
  EXPECT_TRUE(whole == chunks);
}

TEST(half_precision_is_rounded_once) {
  // 2048 + 1 + 1. float16 has no 2049. So a sum that is rounded at each step
  // loses both ones.
  const uint16_t big = ToFloat16(2048).bits, one = ToFloat16(1).bits;
  uint16_t sum = 0;
  ReduceBlocks({DataType::kFloat16, ReduceOp::kSum}, {&big, &one, &one}, &sum,
               1);
  EXPECT_EQ(ToFloat(Float16{sum}), 2050.0f);
  // 60000 + 60000 is beyond float16, its average is not.
  const uint16_t most = ToFloat16(60000).bits;
  ReduceBlocks({DataType::kFloat16, ReduceOp::kAverage}, {&most, &most}, &sum,
               1);
  EXPECT_EQ(sum, most);
}

TEST(blocks_of_an_average_have_weights) {
  const float a = 2, b = 10;
  float average = 0;
  ReduceBlocks({DataType::kFloat32, ReduceOp::kAverage, 1.0, {4, {3, 1}}},
               {&a, &b}, &average, 1);
  EXPECT_EQ(average, 4.0f);
  const uint16_t half = ToFloat16(60000).bits;
  uint16_t same = 0;
  ReduceBlocks({DataType::kFloat16, ReduceOp::kAverage, 1.0, {9, {7, 2}}},
               {&half, &half}, &same, 1);
  EXPECT_EQ(same, half);
}

TEST(min_and_max_hand_nan_on) {
  const float nan = std::nanf("");
  const std::vector<float> a = {nan, 1, nan, -kInf}, b = {1, nan, nan, kInf};
  std::vector<float> low(4), high(4);
  ReduceBlocks({DataType::kFloat32, ReduceOp::kMin}, {a.data(), b.data()},
               low.data(), 4);
  ReduceBlocks({DataType::kFloat32, ReduceOp::kMax}, {a.data(), b.data()},
               high.data(), 4);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(std::isnan(low[i]) && std::isnan(high[i]));
  }
  EXPECT_EQ(low[3], -kInf);
  EXPECT_EQ(high[3], kInf);
}

TEST(one_rank_alone_gets_what_a_transport_would_give) {
  constexpr int64_t kCount = 2500;
  struct Types {
    DataType dtype, wire;
  };
  for (Types types : {Types{DataType::kFloat32, DataType::kFloat16},
                      Types{DataType::kFloat64, DataType::kBfloat16},
                      Types{DataType::kFloat32, DataType::kFloat32},
                      Types{DataType::kFloat16, DataType::kFloat16},
                      Types{DataType::kInt32, DataType::kInt32}}) {
    for (bool in_place : {false, true}) {
      Blocks block(types.dtype, 1, kCount, ReduceOp::kSum);
      std::vector<char> wire(kCount * SizeOf(types.wire));
      std::vector<char> expected(kCount * SizeOf(types.dtype));
      std::vector<char> apart(expected.size());
      void* const in = block.memory[0].data() + SizeOf(types.dtype);
      Pack(types.dtype, types.wire, in, wire.data(), kCount, 1.7);
      ReduceBlocks({types.wire, ReduceOp::kAverage, 0.3}, {wire.data()},
                   wire.data(), kCount);
      Unpack(types.wire, types.dtype, wire.data(), expected.data(), kCount);
      void* const out = in_place ? in : apart.data();
      AllreduceAlone(types.dtype, types.wire, ReduceOp::kAverage, in, out,
                     kCount, 1.7, 0.3);
      EXPECT_EQ(std::memcmp(out, expected.data(), expected.size()), 0);
    }
  }
}

// --- Vector units ---

// The same bits, or both NaN: which NaN comes out is the compiler's choice.
bool Alike(DataType dtype, const char* a, const char* b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const size_t bytes = SizeOf(dtype), at = static_cast<size_t>(i) * bytes;
    if (std::memcmp(a + at, b + at, bytes) == 0) continue;
    const bool both = IsFloating(dtype) && std::isnan(GetValue(dtype, a, i)) &&
                      std::isnan(GetValue(dtype, b, i));
    if (!both) return false;
  }
  return true;
}

TEST(every_vector_unit_gives_the_same_bits) {
  constexpr int64_t kCount = 2500;
  std::mt19937 random(7);
  std::vector<std::vector<char>> noise(5);
  for (std::vector<char>& bytes : noise) {
    bytes.resize((kCount + 1) * sizeof(double));
    for (char& byte : bytes) byte = static_cast<char>(random());
  }
  std::vector<char> expected(kCount * sizeof(double)), got(expected.size());
  for (VectorUnit unit : VectorUnitsHere()) {
    for (DataType dtype : kReducedTypes) {
      for (ReduceOp op : kReduceOps) {
        for (size_t ranks : {1, 2, 3, 4, 5}) {
          std::vector<const void*> blocks;
          for (size_t i = 0; i < ranks; ++i) {
            blocks.push_back(noise[i].data() + i % 2 * SizeOf(dtype));
          }
          ReduceBlocks({dtype, op, 0.7}, blocks, expected.data(), kCount,
                       VectorUnit::kBaseline);
          ReduceBlocks({dtype, op, 0.7}, blocks, got.data(), kCount, unit);
          EXPECT_TRUE(Alike(dtype, expected.data(), got.data(), kCount));
        }
      }
      for (DataType wire : {DataType::kFloat16, DataType::kBfloat16, dtype}) {
        if (wire != dtype && !IsFloating(dtype)) continue;
        for (double scale : {1.0, 0.3}) {
          Pack(dtype, wire, noise[0].data(), expected.data(), kCount, scale,
               VectorUnit::kBaseline);
          Pack(dtype, wire, noise[0].data(), got.data(), kCount, scale, unit);
          EXPECT_TRUE(Alike(wire, expected.data(), got.data(), kCount));
        }
        Unpack(wire, dtype, noise[0].data(), expected.data(), kCount,
               VectorUnit::kBaseline);
        Unpack(wire, dtype, noise[0].data(), got.data(), kCount, unit);
        EXPECT_TRUE(Alike(dtype, expected.data(), got.data(), kCount));
      }
    }
  }
}

// Where the inverse takes the division's place.
TEST(averages_are_rounded_as_a_division_is) {
  constexpr int64_t kCount = 4000;
  std::mt19937 random(11);
  std::vector<uint32_t> bits(kCount);
  for (uint32_t& word : bits) {
    word = static_cast<uint32_t>(random());
    if (random() % 4 == 0) word &= 0x80ffffffu;  // subnormal, or nearly
  }
  std::vector<float> in(kCount), zeros(kCount), out(kCount);
  std::memcpy(in.data(), bits.data(), kCount * sizeof(float));
  for (size_t ranks : {2, 3, 4, 7, 8}) {
    std::vector<const void*> blocks(ranks, zeros.data());
    blocks[0] = in.data();
    ReduceBlocks({DataType::kFloat32, ReduceOp::kAverage}, blocks, out.data(),
                 kCount);
    for (int64_t i = 0; i < kCount; ++i) {
      const float expected = (in[i] + 0.0F) / static_cast<float>(ranks);
      EXPECT_TRUE(out[i] == expected ||
                  (std::isnan(out[i]) && std::isnan(expected)));
    }
  }
}

TEST(an_identity_changes_nothing) {
  for (DataType dtype : kReducedTypes) {
    for (ReduceOp op : kReduceOps) {
      if (op == ReduceOp::kAverage) op = ReduceOp::kSum;
      std::vector<char> values(9 * SizeOf(dtype)), identity(values.size()),
          out(values.size());
      for (int64_t i = 0; i < 9; ++i) {
        PutValue(dtype, values.data(), i, SampleValue(dtype, op, 1, i));
      }
      FillIdentity(dtype, op, identity.data(), 9);
      ReduceBlocks({dtype, op}, {identity.data(), values.data()}, out.data(),
                   9);
      EXPECT_TRUE(out == values);
      ReduceBlocks({dtype, op}, {values.data(), identity.data()}, out.data(),
                   9);
      EXPECT_TRUE(out == values);
    }
  }
}

}  // namespace
}  // namespace hvd
