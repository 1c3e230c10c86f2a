// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other of their GPUs, and the library that they need.
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

LaneOffer OfGpu(char number) {
  LaneOffer offer;
  offer.version = 22707;
  offer.gpu[LaneOffer::kGpuBytes - 1] = number;
  return offer;
}

TEST(ranks_of_different_gpus_agree) {
  EXPECT_TRUE(Decide({OfGpu(1)}, OneHost(1)).ok());
  EXPECT_TRUE(Decide({OfGpu(1), OfGpu(2), OfGpu(3)}, OneHost(3)).ok());
}

TEST(the_first_reason_is_given) {
  LaneOffer newer = OfGpu(3);
  newer.version = 22805;
  EXPECT_EQ(Decide({OfGpu(1), OfGpu(2), newer}, OneHost(3)).message(),
            "NCCL's version is 22707 on rank 0 and 22805 on rank 2");
  EXPECT_EQ(Decide({OfGpu(1), OfGpu(2), OfGpu(1)}, OneHost(3)).message(),
            "rank 0 and rank 2 share a GPU");
  EXPECT_EQ(
      Decide({OfGpu(1), OfGpu(2), OfGpu(1)}, OneHost(3), {3, 5, 8}).message(),
      "rank 3 and rank 8 share a GPU");
  LaneOffer refusal;
  refusal.Refuse("no");
  EXPECT_EQ(Decide({OfGpu(1), refusal, OfGpu(1)}, OneHost(3)).message(),
            "rank 1 says: no");
  EXPECT_EQ(Decide({refusal}, OneHost(1)).code(),
            StatusCode::kFailedPrecondition);
}

TEST(ranks_that_all_may_share_a_gpu_agree) {
  LaneOffer sharer = OfGpu(1);
  sharer.may_share_gpu = 1;
  EXPECT_TRUE(Decide({sharer, sharer}, OneHost(2)).ok());
  EXPECT_EQ(Decide({sharer, sharer, OfGpu(1)}, OneHost(3)).message(),
            "rank 0 and rank 2 share a GPU");
}

TEST(a_long_reason_loses_its_end) {
  LaneOffer refusal = OfGpu(1);
  refusal.Refuse(std::string(5000, 'x'));
  EXPECT_EQ(Decide({refusal}, OneHost(1)).message(),
            "rank 0 says: " + std::string(LaneOffer::kTextBytes - 1, 'x'));
  LaneOffer silent = OfGpu(1);
  silent.Refuse("");
  EXPECT_FALSE(Decide({silent}, OneHost(1)).ok());
}

TEST(the_first_lack_of_kernels_is_told) {
  std::vector<LaneOffer> offers = {OfGpu(1), OfGpu(2), OfGpu(3)};
  for (LaneOffer& offer : offers) offer.has_kernels = 1;
  EXPECT_EQ(LackOfKernels(offers, {}), "");
  offers[1].HasNoKernels("a GPU's driver loads no kernels: SOMETHING (222).");
  offers[2].HasNoKernels("another");
  EXPECT_EQ(LackOfKernels(offers, {4, 5, 6}),
            "rank 5 has no GPU kernels: a GPU's driver loads no kernels: "
            "SOMETHING (222)");
  EXPECT_TRUE(Decide(offers, OneHost(3)).ok());
}

// Such as that of a rank that has only heard of another one, or waited for it.
TEST(a_guess_is_told_if_there_is_no_better_reason) {
  LaneOffer told = OfGpu(3), guess = OfGpu(1), reason = OfGpu(2);
  told.guess = LaneOffer::kToldByPeer;
  told.Refuse("rank 1 cannot");
  EXPECT_EQ(Decide({told, guess}, OneHost(2)).message(),
            "rank 0 says: rank 1 cannot");
  guess.guess = LaneOffer::kWaited;
  guess.Refuse("it took too long");
  EXPECT_EQ(Decide({guess, reason}, OneHost(2)).message(),
            "rank 0 says: it took too long");
  EXPECT_EQ(Decide({told, guess}, OneHost(2)).message(),
            "rank 1 says: it took too long");
  reason.Refuse("no memory");
  EXPECT_EQ(Decide({guess, reason}, OneHost(2)).message(),
            "rank 1 says: no memory");
}

TEST(by_host_where_a_rank_says_so) {
  const auto of_ranks = [](size_t count) {
    std::vector<LaneOffer> offers;
    for (size_t rank = 0; rank < count; ++rank) {
      offers.push_back(OfGpu(static_cast<char>(rank + 1)));
      offers.back().has_kernels = 1;
    }
    return offers;
  };
  std::vector<LaneOffer> four = of_ranks(4);
  const HostMap two_by_two = MakeHostMap({0, 0, 1, 1});
  EXPECT_FALSE(IsByHost(four, two_by_two));
  four[2].is_hierarchical = 1;
  EXPECT_TRUE(IsByHost(four, two_by_two));
  EXPECT_FALSE(IsByHost(four, OneHost(4)));
  EXPECT_EQ(Decide(four, two_by_two).message(), "");
  EXPECT_EQ(Decide(four, MakeHostMap({0, 0, 0, 1})).message(),
            "HVD_HIERARCHICAL_ALLREDUCE is set, but rank 0's host has 3 ranks, "
            "and that of rank 3 has 1");
  EXPECT_EQ(Decide(four, EachAlone(4)).message(),
            "HVD_HIERARCHICAL_ALLREDUCE is set, but each host has one rank");
  four[3].has_kernels = 0;
  EXPECT_EQ(Decide(four, two_by_two).message(),
            "HVD_HIERARCHICAL_ALLREDUCE is set, but rank 3 has no GPU kernels");
  EXPECT_EQ(Decide(four, OneHost(4)).message(), "");
}

TEST(a_library_that_lacks_a_function_is_refused) {
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
TEST(what_nccl_takes) {
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
