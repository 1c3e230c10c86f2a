// SPDX-License-Identifier: Apache-2.0
// HostStaging on a GPU that is made up: the contract of transports, whose
// tensors are on the GPU, and what only a GPU can do wrong.
#include "transport/device/host_staging.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu_backend.h"
#include "harness.h"
#include "on_gpu.h"
#include "run_ranks.h"
#include "set_of.h"
#include "test_gpu.h"
#include "thread_world.h"
#include "transport_contract.h"

namespace hvd {
namespace {

void RunContract(int size, int64_t chunk_bytes, int64_t least_piece_bytes) {
  // The cases' large batches have few chunks. In four pieces all of them are on
  // the wire at once, and the small batch is copied meanwhile.
  std::set<std::string> exceptions;
  if (least_piece_bytes < kLeastPieceBytes) {
    exceptions = {"SmallBatchPassesALargeOne",
                  "BatchThatBorrowsPassesALargeOne",
                  "SparseBatchPassesALargeOne"};
  }
  for (const ContractCase& one : ContractCases()) {
    if (exceptions.count(one.name) > 0) continue;
    const int before = test::failures;
    ThreadWorld world(size, {}, chunk_bytes);
    RunRanks(size, [&](int rank) {
      GpuBackend backend(world.Open(rank),
                         [=](Transport* host, const auto&, const auto& gpu) {
                           return std::make_unique<HostStaging>(
                               host, gpu->device(), [] {}, least_piece_bytes);
                         });
      ContractRank self(&backend, 0, chunk_bytes);
      one.run(&self);
    });
    if (test::failures != before) {
      std::printf("  in %s with %d ranks\n", one.name, size);
    }
  }
}

TEST(contract_with_3_ranks_in_pieces) { RunContract(3, 1024, 512); }
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST(contract_with_3_ranks) { RunContract(3, 1024, kLeastPieceBytes); }
TEST(contract_with_1_rank) { RunContract(1, 1024, kLeastPieceBytes); }
TEST(contract_with_2_ranks) { RunContract(2, 4096, kLeastPieceBytes); }
TEST(contract_with_2_ranks_in_pieces) { RunContract(2, 1024, 512); }
#endif

// --- What only a GPU can do ---

// Some ones on a GPU, which are added up.
class GpuSum {
 public:
  GpuSum(TestGpu* gpu, int64_t count, float value)
      : gpu_(gpu),
        count_(count),
        in_(gpu->Allocate(Bytes())),
        out_(gpu->Allocate(Bytes())) {
    const std::vector<float> values(static_cast<size_t>(count), value);
    gpu->gpu().Write(in_.get(), values.data(), Bytes());
  }

  // Its inputs are there when the framework's stream has come to this.
  void Start(Transport* lane) {
    Batch batch;
    batch.memory = MemoryKind::kCuda;
    Segment& segment = batch.segments.emplace_back();
    segment.in = in_.get();
    segment.out = out_.get();
    segment.count = segment.rows = count_;
    segment.ready = gpu_->Mark();
    id = lane->Start(std::move(batch), [this](const Status& why) {
      EXPECT_FALSE(done);
      done = true;
      status = why;
    });
  }

  bool Is(float value) const {
    std::vector<float> found(static_cast<size_t>(count_));
    gpu_->gpu().Read(found.data(), out_.get(), Bytes());
    return std::count(found.begin(), found.end(), value) == count_;
  }

  BatchId id = 0;
  bool done = false;
  Status status;

 private:
  size_t Bytes() const { return static_cast<size_t>(count_) * sizeof(float); }

  TestGpu* const gpu_;
  const int64_t count_;
  const std::shared_ptr<void> in_, out_;
};

// One rank's lane, with the host transport that it shares with host batches.
struct Rank {
  Rank(ThreadWorld* world, int number, int size)
      : rank(number), backend(world->Open(number)) {
    std::vector<int> ranks(static_cast<size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    host = std::move(backend->NewTransport(0, SetOf(ranks, number)).value());
    lane = std::make_unique<HostStaging>(host.get(), gpu->device(),
                                         [this] { ++woken; });
  }

  void Pass() {
    gpu->Step();
    lane->Progress();
    host->Progress();
  }
  void Drive(const std::function<bool()>& met) {
    const auto limit =
        std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!met()) {
      Pass();
      std::this_thread::yield();
      if (std::chrono::steady_clock::now() > limit) {
        EXPECT_TRUE(false && "done within a minute");
        return;
      }
    }
  }

  const int rank;
  int woken = 0;
  std::unique_ptr<WireBackend> backend;
  std::shared_ptr<TestGpu> gpu = std::make_shared<TestGpu>();
  std::unique_ptr<Transport> host;
  std::unique_ptr<HostStaging> lane;
};

void OnRanks(int size, const std::function<void(Rank*)>& body) {
  ThreadWorld world(size, {}, 1024);
  RunRanks(size, [&](int number) {
    Rank rank(&world, number, size);
    body(&rank);
  });
}

// Both kinds are in one order on the host transport, however long a GPU takes.
TEST(batches_of_the_host_and_of_a_gpu_keep_their_order) {
  OnRanks(2, [](Rank* self) {
    const auto is_open = std::make_shared<bool>(false);
    GpuSum slow(self->gpu.get(), 3000, 1.0f), quick(self->gpu.get(), 5, 2);
    Call host(std::vector<float>(700, 3.0f), 700);
    self->gpu->ComputeOnce(is_open);
    slow.Start(self->lane.get());
    host.Start(self->host.get(), {});
    if (self->rank == 0) *is_open = true;  // rank 1's comes later
    self->Drive([&] { return host.done(); });
    EXPECT_FALSE(slow.done);
    quick.Start(self->lane.get());
    *is_open = true;
    self->Drive([&] { return slow.done && quick.done; });
    EXPECT_EQ(slow.status.message() + quick.status.message(), "");
    EXPECT_TRUE(slow.Is(2) && quick.Is(4));
    EXPECT_TRUE(host.out() == std::vector<float>(700, 6.0f));
    EXPECT_EQ(self->woken, 4);
  });
}

TEST(a_gpu_that_fails_fails_its_batches_on_all_ranks) {
  OnRanks(3, [](Rank* self) {
    GpuSum sum(self->gpu.get(), 2000, 1.0f), later(self->gpu.get(), 9, 1);
    if (self->rank == 1) self->gpu->gpu().FailNextCopy();
    for (GpuSum* one : {&sum, &later}) {
      one->Start(self->lane.get());
      self->Drive([&] { return one->done; });
      EXPECT_EQ(one->status.message(),
                self->rank == 1
                    ? "a GPU failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)."
                    : "rank 1 met an internal error; see its log.");
    }
    Call host({1.0f}, 1);  // the host's go on
    host.Start(self->host.get(), {});
    self->Drive([&] { return host.done() && self->host->in_flight() == 0; });
    EXPECT_EQ(host.status().message(), "");
  });
}

TEST(a_gpu_that_fails_on_the_way_back_fails_its_own_rank) {
  OnRanks(2, [](Rank* self) {
    GpuSum sum(self->gpu.get(), 2000, 1.0f);
    sum.Start(self->lane.get());
    self->gpu->Step();
    if (self->rank == 1) self->gpu->gpu().FailNextCopy();
    self->Drive([&] { return sum.done; });
    EXPECT_EQ(sum.status.message(),
              self->rank == 1
                  ? "a GPU failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)."
                  : "");
    EXPECT_TRUE(self->rank == 1 || sum.Is(2));
    self->Drive([&] { return self->host->in_flight() == 0; });
  });
}

TEST(without_pinned_memory_a_batch_fails_on_all_ranks) {
  OnRanks(2, [](Rank* self) {
    GpuSum sum(self->gpu.get(), 2000, 1.0f);
    if (self->rank == 1) self->gpu->gpu().RunOutOfPinned();
    sum.Start(self->lane.get());
    self->Drive([&] { return sum.done; });
    EXPECT_EQ(sum.status.message(),
              self->rank == 1 ? "there is no pinned memory for 8192 bytes: "
                                "CUDA_ERROR_OUT_OF_MEMORY (2)."
                              : "rank 1 had no memory for the result.");
    EXPECT_EQ(sum.status.code(), StatusCode::kResourceExhausted);
    self->Drive([&] { return self->host->in_flight() == 0; });
  });
}

TEST(a_batch_that_is_cancelled_ends_when_its_gpu_has_copied) {
  OnRanks(2, [](Rank* self) {
    const auto is_open = std::make_shared<bool>(false);
    GpuSum sum(self->gpu.get(), 2000, 1.0f);
    self->gpu->ComputeOnce(is_open);
    sum.Start(self->lane.get());
    if (self->rank == 0) {
      *is_open = true;
    } else {
      self->lane->Cancel(sum.id, Cancelled("the step was aborted"));
      self->lane->Cancel(sum.id, Cancelled("again"));
      for (int i = 0; i < 100; ++i) self->Pass();
      EXPECT_FALSE(sum.done);  // its inputs may still be read
      EXPECT_EQ(self->lane->in_flight(), 1);
      *is_open = true;
    }
    self->Drive([&] { return sum.done; });
    EXPECT_EQ(sum.status.message(),
              self->rank == 1
                  ? "the step was aborted"
                  : "rank 1 aborted its step while the data was on the way.");
    self->lane->Cancel(sum.id, Cancelled("too late"));
    self->Drive([&] { return self->host->in_flight() == 0; });
    GpuSum after(self->gpu.get(), 7, 1.0f);
    after.Start(self->lane.get());
    self->Drive([&] { return after.done; });
    EXPECT_TRUE(after.status.ok() && after.Is(2));
  });
}

// A rank whose GPU hangs keeps nobody else from the host's batches, and its
// peers can leave the batch.
TEST(a_gpu_that_hangs_is_left) {
  OnRanks(2, [](Rank* self) {
    const auto is_open = std::make_shared<bool>(self->rank == 0);
    GpuSum sum(self->gpu.get(), 2000, 1.0f);
    self->gpu->ComputeOnce(is_open);
    sum.Start(self->lane.get());
    Call host({1.0f}, 1);
    host.Start(self->host.get(), {});
    self->Drive([&] { return host.done(); });
    EXPECT_EQ(host.status().message(), "");
    if (self->rank == 0) {
      self->Drive([&] { return self->woken == 1; });
      EXPECT_FALSE(sum.done);
      self->lane->Cancel(sum.id, PeerLost("rank 1 does not answer"));
      EXPECT_EQ(sum.status.message(), "rank 1 does not answer");
    }
  });
}

// Some of a large batch is on the wire, or back on the GPU, while the rest has
// not been copied in.
TEST(pieces_of_a_large_batch_overlap) {
  OnRanks(2, [](Rank* self) {
    constexpr int64_t kPieceBytes = 64 << 10;
    const int64_t count = kPieceBytes / 4;
    self->lane = std::make_unique<HostStaging>(
        self->host.get(), self->gpu->device(), [] {}, kPieceBytes);
    const auto is_open = std::make_shared<bool>(false);
    const TestGpu::Ready early = self->gpu->Mark();
    self->gpu->ComputeOnce(is_open);
    const TestGpu::Ready late = self->gpu->Mark();
    Batch batch;
    batch.memory = MemoryKind::kCuda;
    std::array<std::shared_ptr<void>, 3> memory;
    const std::vector<float> ones(static_cast<size_t>(count), 1.0f);
    for (size_t i = 0; i < 3; ++i) {
      memory[i] = self->gpu->Allocate(ones.size() * 4);
      self->gpu->gpu().Write(memory[i].get(), ones.data(), ones.size() * 4);
      Segment& segment = batch.segments.emplace_back();
      segment.in = segment.out = memory[i].get();
      segment.count = segment.rows = count;
      segment.ready = i < 2 ? early : late;
    }
    bool done = false;
    Status status;
    const BatchId id =
        self->lane->Start(std::move(batch), [&](const Status& why) {
          done = true;
          status = why;
        });
    EXPECT_EQ(self->host->in_flight(), 3);
    EXPECT_EQ(self->lane->count_of(id), 3);
    const auto is = [&](size_t i, float value) {
      std::vector<float> found(ones.size());
      self->gpu->gpu().Read(found.data(), memory[i].get(), found.size() * 4);
      return std::count(found.begin(), found.end(), value) == count;
    };
    const auto last_is_two = [&](size_t i) {
      float last = 0;
      self->gpu->gpu().Read(
          &last, static_cast<float*>(memory[i].get()) + count - 1, 4);
      return last == 2;
    };
    self->Drive([&] { return last_is_two(0) && last_is_two(1); });
    EXPECT_FALSE(done);
    EXPECT_TRUE(is(0, 2) && is(1, 2) && is(2, 1));
    *is_open = true;
    self->Drive([&] { return done; });
    EXPECT_EQ(status.message(), "");
    EXPECT_TRUE(is(2, 2));
    self->Drive([&] { return self->host->in_flight() == 0; });
  });
}

// Its program may go on with the variable as soon as that has been read.
TEST(a_root_writes_nothing) {
  std::atomic<bool> is_changed{false};
  OnRanks(2, [&](Rank* self) {
    float value = 1.0f + self->rank;
    const auto memory = self->gpu->Allocate(sizeof(value));
    self->gpu->gpu().Write(memory.get(), &value, sizeof(value));
    if (self->rank == 1) self->Drive([&] { return is_changed.load(); });
    Batch batch;
    batch.verb = Verb::kBroadcast;
    batch.memory = MemoryKind::kCuda;
    Segment& segment = batch.segments.emplace_back();
    segment.in = segment.out = memory.get();
    segment.count = segment.rows = 1;
    segment.ready = self->gpu->Mark();
    bool done = false;
    self->lane->Start(std::move(batch), [&](const Status& why) {
      EXPECT_EQ(why.message(), "");
      done = true;
    });
    if (self->rank == 0) {
      self->Pass();  // it has been read
      value = 5.0f;
      self->gpu->gpu().Write(memory.get(), &value, sizeof(value));
      is_changed = true;
    }
    self->Drive([&] { return done; });
    self->Drive([&] { return self->host->in_flight() == 0; });
    self->gpu->gpu().Read(&value, memory.get(), sizeof(value));
    EXPECT_EQ(value, self->rank == 0 ? 5.0f : 1.0f);
  });
}

TEST(pinned_memory_is_used_again) {
  OnRanks(2, [](Rank* self) {
    size_t first_bytes = 0;
    for (int i = 0; i < 20; ++i) {
      GpuSum sum(self->gpu.get(), 5000 - i, 1.0f);
      sum.Start(self->lane.get());
      self->Drive([&] { return sum.done; });
      EXPECT_TRUE(sum.Is(2));
      self->Drive([&] { return self->host->in_flight() == 0; });
      if (i == 0) first_bytes = self->gpu->gpu().pinned_bytes();
    }
    EXPECT_EQ(self->gpu->gpu().pinned_bytes(), first_bytes);
  });
}

}  // namespace
}  // namespace hvd
