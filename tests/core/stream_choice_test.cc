// SPDX-License-Identifier: Apache-2.0
// StreamChoice on machines that are models: how fast they pack either way.
#include "cpu/stream_choice.h"

#include "harness.h"

namespace hvd {
namespace {

constexpr size_t kBlock = 128 << 10;

// GB/s of a Zen 4's two cores that share a cache, and that do not.
struct Machine {
  double cached_gb_s;
  double streamed_gb_s;
};
constexpr Machine kTogether{15, 11.5}, kApart{2.5, 18};

// Packs a block as the choice says. True if past the cache.
bool PackBlock(StreamChoice* choice, const Machine& machine,
               size_t bytes = kBlock, double seconds_more = 0) {
  const bool streamed = choice->Next(bytes);
  const double gb_s = streamed ? machine.streamed_gb_s : machine.cached_gb_s;
  const double seconds = static_cast<double>(bytes) / gb_s * 1e-9;
  choice->Took(bytes, streamed, seconds + seconds_more);
  return streamed;
}

// How many of so many blocks were streamed.
int PackBlocks(StreamChoice* choice, const Machine& machine, int count,
               size_t bytes = kBlock) {
  int streamed = 0;
  for (int i = 0; i < count; ++i) {
    streamed += PackBlock(choice, machine, bytes);
  }
  return streamed;
}

TEST(BlocksStayInACacheThatIsShared) {
  StreamChoice choice;
  const int streamed = PackBlocks(&choice, kTogether, 20000);
  EXPECT_TRUE(streamed > 0);    // it tries
  EXPECT_TRUE(streamed < 200);  // but not often
  EXPECT_FALSE(choice.Streams(kBlock));
}

TEST(BlocksAreStreamedBetweenCoresThatShareNoCache) {
  StreamChoice choice;
  const int streamed = PackBlocks(&choice, kApart, 20000);
  EXPECT_TRUE(streamed > 19500);
  EXPECT_TRUE(streamed < 20000);
  EXPECT_TRUE(choice.Streams(kBlock));
}

TEST(TheFirstTrialComesWithin16MB) {
  StreamChoice choice;
  PackBlocks(&choice, kApart, (16 << 20) / kBlock);
  EXPECT_TRUE(choice.Streams(kBlock));
}

TEST(AMoveApartIsSeenWithAFewBlocks) {
  StreamChoice choice;
  PackBlocks(&choice, kTogether, 3000);
  PackBlocks(&choice, kApart, 8);
  EXPECT_TRUE(choice.Streams(kBlock));
}

TEST(AMoveTogetherIsSeenWithin256MB) {
  StreamChoice choice;
  PackBlocks(&choice, kApart, 3000);
  PackBlocks(&choice, kTogether, (256 << 20) / kBlock);
  EXPECT_FALSE(choice.Streams(kBlock));
}

TEST(ALostCoreIsNoSlowCache) {
  constexpr double kSlice = 4e-3;
  for (const Machine& machine : {kTogether, kApart}) {
    StreamChoice choice;
    PackBlocks(&choice, machine, 3000);
    const bool streams = choice.Streams(kBlock);
    int changes = 0;
    // Every third block, be it one of a trial or not.
    for (int i = 0; i < 20000; ++i) {
      PackBlock(&choice, machine, kBlock, i % 3 == 0 ? kSlice : 0);
      changes += choice.Streams(kBlock) != streams;
    }
    EXPECT_EQ(changes, 0);
  }
}

TEST(AMachineInBetweenKeepsToOneWay) {
  // A ratio between where streaming begins and where it ends.
  constexpr Machine kBetween{5, 10};
  StreamChoice cached;
  PackBlocks(&cached, kTogether, 3000);
  PackBlocks(&cached, kBetween, 9000);
  EXPECT_FALSE(cached.Streams(kBlock));
  StreamChoice streamed;
  PackBlocks(&streamed, kApart, 3000);
  PackBlocks(&streamed, kBetween, 9000);
  EXPECT_TRUE(streamed.Streams(kBlock));
}

TEST(SmallBlocksAreNeverStreamedAndSayNothing) {
  StreamChoice choice;
  EXPECT_EQ(PackBlocks(&choice, kApart, 50000, 4096), 0);
  PackBlocks(&choice, kApart, 3000);
  EXPECT_TRUE(choice.Streams(kBlock));
  EXPECT_FALSE(choice.Streams(4096));
  EXPECT_EQ(PackBlocks(&choice, kTogether, 50000, 4096), 0);
  EXPECT_TRUE(choice.Streams(kBlock));
}

TEST(AFirstBlockThatIsLongerThanAllTrialsDecidesNothing) {
  StreamChoice choice;
  PackBlocks(&choice, kTogether, 3, size_t{1} << 30);
  EXPECT_FALSE(choice.Streams(kBlock));
}

TEST(APolicyIsKept) {
  StreamChoice never(StreamChoice::kNever), always(StreamChoice::kAlways);
  EXPECT_EQ(PackBlocks(&never, kApart, 5000), 0);
  EXPECT_EQ(PackBlocks(&always, kTogether, 5000), 5000);
  EXPECT_EQ(PackBlocks(&always, kTogether, 5000, 16), 5000);
}

}  // namespace
}  // namespace hvd
