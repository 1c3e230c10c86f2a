// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other of their cards, and the library that they need.
#include "transport/device/lane_offer.h"

#include <cstring>
#include <string>
#include <vector>

#include "fake_nccl.h"
#include "harness.h"
#include "transport/cuda/nccl_communicator.h"
#include "transport/cuda/nccl_library.h"

namespace hvd {
namespace {

LaneOffer OfCard(char number) {
  LaneOffer offer;
  offer.version = 22707;
  offer.card[LaneOffer::kCardBytes - 1] = number;
  return offer;
}

TEST(RanksOfDifferentCardsAgree) {
  EXPECT_TRUE(Decide({OfCard(1)}).ok());
  EXPECT_TRUE(Decide({OfCard(1), OfCard(2), OfCard(3)}).ok());
}

TEST(TheFirstReasonIsGiven) {
  LaneOffer newer = OfCard(3);
  newer.version = 22805;
  EXPECT_EQ(Decide({OfCard(1), OfCard(2), newer}).message(),
            "NCCL's version is 22707 on rank 0 and 22805 on rank 2");
  EXPECT_EQ(Decide({OfCard(1), OfCard(2), OfCard(1)}).message(),
            "rank 0 and rank 2 share a GPU");
  LaneOffer refusal;
  refusal.Refuse("no");
  EXPECT_EQ(Decide({OfCard(1), refusal, OfCard(1)}).message(),
            "rank 1 says: no");
  EXPECT_EQ(Decide({refusal}).code(), StatusCode::kFailedPrecondition);
}

TEST(ALongReasonLosesItsEnd) {
  LaneOffer refusal = OfCard(1);
  refusal.Refuse(std::string(5000, 'x'));
  EXPECT_EQ(Decide({refusal}).message(),
            "rank 0 says: " + std::string(LaneOffer::kTextBytes - 1, 'x'));
  LaneOffer silent = OfCard(1);
  silent.Refuse("");
  EXPECT_FALSE(Decide({silent}).ok());
}

TEST(ALibraryThatLacksAFunctionIsRefused) {
  const auto old = NcclLibrary::Find([](const char* name) -> void* {
    return std::strcmp(name, "ncclCommInitRankConfig") == 0
               ? nullptr
               : FakeNccl::Find(name);
  });
  EXPECT_EQ(old.status().message(),
            "libnccl.so.2 has no ncclCommInitRankConfig; install NCCL 2.14 or "
            "newer");
}

// Scales are exact, or it is not for NCCL.
TEST(WhatNcclTakes) {
  const NcclCommunicators nccl(&NcclLibrary::OfMachine);
  const DataType half = DataType::kFloat16, brief = DataType::kBfloat16;
  for (const DataType dtype :
       {half, brief, DataType::kFloat32, DataType::kFloat64}) {
    EXPECT_TRUE(nccl.Takes(dtype, ReduceOp::kSum, 1.0));
    EXPECT_TRUE(nccl.Takes(dtype, ReduceOp::kAverage, 0.25));
    EXPECT_FALSE(nccl.Takes(dtype, ReduceOp::kAdasum, 1.0));
    EXPECT_FALSE(nccl.Takes(dtype, ReduceOp::kMax, 0.5));
  }
  EXPECT_FALSE(nccl.Takes(half, ReduceOp::kAverage, 1.0 / 3));
  EXPECT_FALSE(nccl.Takes(brief, ReduceOp::kSum, 1.0 + 1.0 / 1024));
  EXPECT_TRUE(nccl.Takes(DataType::kFloat32, ReduceOp::kAverage, 1.0 / 3));
  EXPECT_TRUE(nccl.Takes(DataType::kInt64, ReduceOp::kSum, 1.0));
  EXPECT_FALSE(nccl.Takes(DataType::kInt64, ReduceOp::kAverage, 0.5));
  EXPECT_FALSE(nccl.Takes(DataType::kInt16, ReduceOp::kSum, 1.0));
  EXPECT_FALSE(nccl.Takes(DataType::kBool, ReduceOp::kMax, 1.0));
}

}  // namespace
}  // namespace hvd
