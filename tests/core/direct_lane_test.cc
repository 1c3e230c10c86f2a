// SPDX-License-Identifier: Apache-2.0
// DirectLane over an NCCL that is made up: the contract of transports, whose
// tensors are on GPUs that work among themselves.
#include "transport/device/direct_lane.h"

#include <sched.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fake_nccl.h"
#include "gpu_backend.h"
#include "harness.h"
#include "run_ranks.h"
#include "set_of.h"
#include "test_gpu.h"
#include "thread_world.h"
#include "transport/cuda/nccl_communicator.h"
#include "transport_contract.h"

namespace hvd {
namespace {

Result<const NcclLibrary*> Nccl() {
  static const Result<NcclLibrary> library = NcclLibrary::Find(&FakeNccl::Find);
  return &library.value();
}

// A sum of one number of the GPU, in place.
Batch SumOfOne(void* memory, TestGpu* gpu) {
  Batch batch;
  batch.memory = MemoryKind::kCuda;
  Segment& segment = batch.segments.emplace_back();
  segment.in = segment.out = memory;
  segment.count = segment.rows = 1;
  segment.ready = gpu->Mark();
  return batch;
}

// Makes lanes of a rank, whose GPUs work among themselves from the first batch
// on. All members make them at the same time.
class Lanes {
 public:
  Lanes(const void* kernels, bool completes_in_stream)
      : kernels_(kernels), completes_in_stream_(completes_in_stream) {}

  // They stop before the last meetings where these are not all.
  static constexpr int kMeetings = 4;
  std::unique_ptr<DirectLane> New(Transport* host, const HostMap& hosts,
                                  const std::shared_ptr<TestGpu>& gpu,
                                  int meetings = kMeetings) {
    if (queue_ == nullptr) {
      device_ = std::make_shared<CudaDevice>(kernels_);
      queue_ = std::make_shared<GpuQueue>(device_);
    }
    LaneOwner owner;
    owner.set_id = next_set_++;
    owner.completes_in_stream = completes_in_stream_;
    // It matters where there are several hosts.
    owner.hosts = hosts;
    owner.is_hierarchical = true;
    const auto asked = std::make_shared<std::function<void(const Status&)>>();
    owner.ask_to_meet = [asked](auto answer) { *asked = std::move(answer); };
    auto lane = std::make_unique<DirectLane>(
        host, device_, queue_, std::make_unique<NcclCommunicators>(&Nccl),
        [] {}, std::move(owner), std::chrono::minutes(1));
    Call warm({1.0f}, 1);
    const auto memory = gpu->Allocate(sizeof(float));
    warm.Start(lane.get(), SumOfOne(memory.get(), gpu.get()));
    // Sets that have one rank of a host stay staged.
    const bool is_direct = hosts.host_count() == 1 || hosts.smallest_host() > 1;
    const auto step = [&] {
      const bool moved = host->Progress();
      gpu->Step();
      if (!lane->Progress() && !moved) sched_yield();
    };
    // Each time all ask behind the same batch.
    for (int i = 0; i < (is_direct ? meetings : 1); ++i) {
      while (!*asked) step();
      lane->Meet(true);
      std::exchange(*asked, nullptr)(Status::Ok());
    }
    // It asks for the next.
    while (!warm.done() || (meetings < kMeetings && !*asked)) step();
    EXPECT_EQ(warm.status().message(), "");
    EXPECT_EQ(lane->is_direct(), is_direct && meetings == kMeetings);
    return lane;
  }

  // After the first New.
  GpuQueue* queue() const { return queue_.get(); }

 private:
  const void* const kernels_;
  const bool completes_in_stream_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<GpuQueue> queue_;
  int next_set_ = 0;
};

// How the lanes are, and what they are asked.
struct Variant {
  const void* kernels = FakeKernelImage();
  bool completes_in_stream = false;
  std::vector<std::string> hosts;  // of each rank. Empty: one
  std::vector<ContractCase> cases = ContractCases();
};

std::set<std::string> Exceptions(int size, const Variant& variant) {
  const bool have_kernels = variant.kernels != nullptr;
  // A GPU does one batch after another.
  std::set<std::string> names = {
      "SmallBatchPassesALargeOne",  "BatchThatBorrowsPassesALargeOne",
      "SparseBatchPassesALargeOne", "FrozenSetStopsNoOther",
      "FrozenBetweenPhases",        "SmallBatchPassesTheSecondPhase",
      "SparseFrozenBetweenPhases"};
  // NCCL adds in an order of its own.
  names.insert("SumsAreInFixedOrder");
  names.insert("ChunksMayChangeBetweenBatches");
  // An allreduce is scaled before the sum and behind it, by our kernels.
  if (have_kernels) names.insert("ReducescatterHasTheBitsOfAllreduce");
  // Where hosts go between GPUs, it is staged and adds up in rank order.
  if (!variant.hosts.empty()) names.insert("ReducescatterOfAnyRows");
  // NCCL adds float16 as such, so it is divided by the ranks before that. The
  // smallest ones lose two bits more with four ranks.
  if (have_kernels && size > 2) names.insert("HalvesKeepTheirPrecision");
  // It is done before it is cancelled.
  if (variant.completes_in_stream) names.insert("CancelledInFlight");
  // GPUs need all ranks of a broadcast.
  names.insert("ReceiverOfABroadcastFailsAlone");
  // Where a rank looks for NaN, all stage.
  names.insert({"PoisonInThePhaseOfSizes", "SparseNaNAmongTheValues"});
  for (const ContractCase& one : FiniteCases()) names.insert(one.name);
  return names;
}

using Kind = CommunicatorCall::Kind;

// Calls of these kinds must be made.
void RunContract(int size, const std::vector<Kind>& kinds,
                 const Variant& variant = {}) {
  const int64_t chunk_bytes = 1024;
  const std::set<std::string> exceptions = Exceptions(size, variant);
  std::map<Kind, int> calls;
  for (const ContractCase& one : variant.cases) {
    if (exceptions.count(one.name) > 0) continue;
    FakeNccl::Reset();
    const int before = test::failures;
    ThreadWorld world(size, variant.hosts, chunk_bytes);
    RunRanks(size, [&](int rank) {
      GpuBackend backend(
          world.Open(rank),
          // They go before the backend's GPU does.
          [lanes = std::make_shared<Lanes>(variant.kernels,
                                           variant.completes_in_stream)](
              Transport* host, const auto& hosts, const auto& gpu) {
            return lanes->New(host, hosts, gpu);
          },
          variant.completes_in_stream);
      ContractRank self(&backend, 0, chunk_bytes);
      one.run(&self);
    });
    EXPECT_EQ(FakeNccl::misfitting(), 0);
    for (const Kind kind : kinds) calls[kind] += FakeNccl::calls(kind);
    if (test::failures != before) {
      std::printf("  in %s with %d ranks\n", one.name, size);
    }
  }
  for (const Kind kind : kinds) EXPECT_TRUE(calls[kind] >= 10);
}

Variant Sparse() {
  Variant variant;
  variant.cases = SparseCases();
  return variant;
}

Variant InStreamOrder() {
  Variant variant;
  variant.completes_in_stream = true;
  return variant;
}

Variant WithoutKernels() {
  Variant variant;
  variant.kernels = nullptr;
  return variant;
}

Variant ByHost() {
  Variant variant;
  variant.hosts = {"a", "b", "b", "a"};
  return variant;
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST(contract_with_1_rank) { RunContract(1, {Kind::kAllreduce}); }
TEST(contract_with_2_ranks) {
  RunContract(
      2, {Kind::kAllreduce, Kind::kBroadcast, Kind::kAllgather, Kind::kReduce,
          Kind::kReducescatter, Kind::kSend, Kind::kReceive});
}
#endif
// NCCL multiplies by a third where the contract divides by three.
TEST(contract_with_4_ranks) {
  RunContract(4, {Kind::kReduce, Kind::kReducescatter, Kind::kReceive});
}
TEST(sparse_rows_go_from_gpu_to_gpu) {
  RunContract(2, {Kind::kAllgather, Kind::kBroadcast}, Sparse());
}
TEST(contract_in_the_order_of_the_stream) {
  RunContract(2, {Kind::kAllreduce}, InStreamOrder());
}
TEST(contract_without_kernels) {
  RunContract(2, {Kind::kAllreduce}, WithoutKernels());
}
// A set's trial begins on one rank before a batch of another set does, and on
// the other rank behind it.
TEST(trial_and_batch_in_opposite_order) {
  FakeNccl::Reset();
  ThreadWorld world(2, {}, 1024);
  RunRanks(2, [&](int rank) {
    const auto backend = world.Open(rank);
    const auto gpu = std::make_shared<TestGpu>();
    Lanes lanes(FakeKernelImage(), false);
    ContractRank self(backend.get(), 0, 1024);
    const auto host = self.NewTransport(), other_host = self.NewTransport();
    const auto lane = lanes.New(host.get(), OneHost(2), gpu);
    const auto other = lanes.New(other_host.get(), OneHost(2), gpu, 1);
    const auto step = [&] {
      bool moved = host->Progress() | other_host->Progress();
      gpu->Step();
      moved |= lane->Progress() | other->Progress();
      if (!moved) sched_yield();
    };
    const auto memory = gpu->Allocate(sizeof(float));
    Call call({1.0f}, 1);
    Batch batch;
    batch.memory = MemoryKind::kCuda;
    Segment& segment = batch.segments.emplace_back();
    segment.in = segment.out = memory.get();
    segment.count = segment.rows = 1;
    segment.ready = gpu->Mark();
    if (rank == 1) other->Meet(true);
    call.Start(lane.get(), std::move(batch));
    if (rank == 0) {
      while (lane->with_gpu().empty()) step();
      // NCCL gives it to the GPU soon after.
      for (int i = 0; i < 20; ++i) step();
      other->Meet(true);
    }
    const auto limit =
        std::chrono::steady_clock::now() + std::chrono::seconds(10);
    const auto is_over = [&] {
      return call.done() && host->in_flight() == 0 &&
             other_host->in_flight() == 0;
    };
    while (!is_over() && std::chrono::steady_clock::now() < limit) step();
    EXPECT_TRUE(is_over());
    EXPECT_EQ(call.status().message(), "");
  });
}

// The driver frees pinned memory when the GPU has done its work, which may be a
// kernel whose peer is lost.
TEST(nothing_is_freed_while_another_sets_kernel_waits) {
  FakeNccl::Reset();
  ThreadWorld world(2, {}, 1024);
  RunRanks(2, [&](int rank) {
    const auto backend = world.Open(rank);
    const auto gpu = std::make_shared<TestGpu>();
    Lanes lanes(FakeKernelImage(), false);
    const HostMap hosts = MakeHostMap({0, 0});
    const auto host_a =
        std::move(backend->NewTransport(1, SetOf({0, 1}, rank)).value());
    const auto host_b =
        std::move(backend->NewTransport(2, SetOf({0, 1}, rank)).value());
    const auto a = lanes.New(host_a.get(), hosts, gpu);
    auto b = lanes.New(host_b.get(), hosts, gpu);
    const auto step = [&] {
      const bool moved = host_a->Progress() | host_b->Progress();
      gpu->Step();
      if (!a->Progress() && !moved) sched_yield();
    };
    while (host_b->in_flight() > 0) step();
    const size_t pinned = gpu->gpu().pinned_blocks();
    EXPECT_TRUE(pinned > 0);
    if (rank == 0) FakeNccl::HoldKernels(0);

    Call call({1.0f}, 1);
    const auto memory = gpu->Allocate(sizeof(float));
    call.Start(a.get(), SumOfOne(memory.get(), gpu.get()));
    if (rank == 0) {
      while (a->with_gpu().empty() || !lanes.queue()->order().empty()) step();
      EXPECT_FALSE(lanes.queue()->is_free());
      b.reset();
      EXPECT_EQ(gpu->gpu().pinned_blocks(), pinned);
      FakeNccl::ReleaseKernels();
    }
    while (!call.done()) step();
    EXPECT_EQ(call.status().message(), "");
    EXPECT_TRUE(lanes.queue()->is_free());
    while (host_a->in_flight() > 0) step();
  });
}

TEST(contract_by_host) {
  RunContract(4, {Kind::kReducescatter, Kind::kAllgather}, ByHost());
}

}  // namespace
}  // namespace hvd
