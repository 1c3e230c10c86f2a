// SPDX-License-Identifier: Apache-2.0
// CutIntoPieces: every element once, in order, and only where it may be cut.
#include "transport/device/staging_pieces.h"

#include <random>
#include <string>
#include <vector>

#include "harness.h"

namespace hvd {
namespace {

using Pieces = std::vector<std::vector<SegmentPart>>;

Batch BatchOf(const std::vector<int64_t>& counts) {
  Batch batch;
  for (const int64_t count : counts) {
    Segment& segment = batch.segments.emplace_back();
    segment.count = segment.rows = count;
  }
  return batch;
}

int64_t ElementsOf(const std::vector<SegmentPart>& piece) {
  int64_t total = 0;
  for (const SegmentPart& part : piece) total += part.count;
  return total;
}

// Each segment's elements are in parts that follow each other.
void CheckCovers(const Batch& batch, const Pieces& pieces, bool may_cut) {
  std::vector<int64_t> next(batch.segments.size(), 0);
  std::vector<int> parts(batch.segments.size(), 0);
  size_t last = 0;
  for (const auto& piece : pieces) {
    EXPECT_FALSE(piece.empty());
    for (const SegmentPart& part : piece) {
      EXPECT_TRUE(part.segment >= last);
      last = part.segment;
      EXPECT_EQ(part.begin, next[part.segment]);
      EXPECT_EQ(part.begin % 64, 0);
      next[part.segment] += part.count;
      ++parts[part.segment];
    }
  }
  for (size_t i = 0; i < next.size(); ++i) {
    EXPECT_EQ(next[i], batch.segments[i].count);
    EXPECT_TRUE(may_cut ? parts[i] >= 1 : parts[i] == 1);
  }
}

TEST(every_element_is_in_one_piece) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> counts(1 + random() % 12);
    for (int64_t& count : counts) {
      count = random() % 4 == 0 ? 0 : static_cast<int64_t>(random() % 5000);
    }
    for (const Verb verb : {Verb::kAllreduce, Verb::kBroadcast,
                            Verb::kReducescatter, Verb::kAllgather}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAdasum}) {
        Batch batch = BatchOf(counts);
        batch.verb = verb;
        batch.reduce_op = op;
        const Pieces pieces = CutIntoPieces(batch, 4096);
        CheckCovers(batch, pieces,
                    verb == Verb::kBroadcast ||
                        (verb == Verb::kAllreduce && op == ReduceOp::kSum));
        EXPECT_TRUE(verb != Verb::kAllgather || pieces.size() == 1);
      }
    }
  }
}

TEST(pieces_are_of_about_the_same_size) {
  for (const auto& counts :
       {std::vector<int64_t>{1 << 20}, std::vector<int64_t>(256, 4096)}) {
    const Pieces pieces = CutIntoPieces(BatchOf(counts), 4096);
    EXPECT_EQ(pieces.size(), 4u);
    for (const auto& piece : pieces) {
      EXPECT_TRUE(ElementsOf(piece) >= (1 << 18) - 8192 &&
                  ElementsOf(piece) <= (1 << 18) + 8192);
    }
  }
}

TEST(a_call_is_not_divided) {
  Batch batch = BatchOf(std::vector<int64_t>(6, 4096));
  const std::string first = "first", second = "second";
  for (size_t i = 0; i < 6; ++i) {
    batch.segments[i].name = i < 2 ? &first : &second;
  }
  const Pieces pieces = CutIntoPieces(batch, 4096);
  EXPECT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].size(), 2u);
  CheckCovers(batch, pieces, false);
}

// Only one rank may check, and all must cut in the same way.
TEST(it_does_not_depend_on_what_is_checked) {
  Batch batch = BatchOf({100000});
  const size_t count = CutIntoPieces(batch, 4096).size();
  batch.check_finite = true;
  EXPECT_EQ(CutIntoPieces(batch, 4096).size(), count);
}

TEST(what_is_small_is_one_piece) {
  EXPECT_EQ(CutIntoPieces(BatchOf({1000}), 4096).size(), 1u);
  EXPECT_EQ(CutIntoPieces(BatchOf({0, 0}), 4096).size(), 1u);
}

TEST(a_part_has_its_place_in_the_tensors) {
  std::vector<float> in(300), out(300);
  Batch batch = BatchOf({300});
  batch.segments[0].in = in.data();
  batch.segments[0].out = out.data();
  const Segment part = PartOf(batch, {0, 64, 100});
  EXPECT_TRUE(part.in == &in[64] && part.out == &out[64]);
  EXPECT_EQ(part.count, 100);
  EXPECT_EQ(part.rows * part.row_count, 100);
  batch.segments[0].in = nullptr;
  EXPECT_TRUE(PartOf(batch, {0, 64, 100}).in == nullptr);
}

}  // namespace
}  // namespace hvd
