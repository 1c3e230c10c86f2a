// SPDX-License-Identifier: Apache-2.0
// LaneDecision alone: ranks of one thread, whose hosts, communicators and GPUs
// are made up.
#include "transport/device/lane_decision.h"

#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/log.h"
#include "harness.h"
#include "test_gpu.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

// The batches of one rank, in order.
struct HostBatch {
  Batch batch;
  BatchDone done;  // null: it was called
};
using HostBatches = std::deque<HostBatch>;

void End(HostBatch* started, const Status& status) {
  if (started->done) std::exchange(started->done, nullptr)(status);
}

// Does a batch once all ranks have started it and have their inputs. One of
// which a rank is not Ok fails on all.
class OneHostTransport final : public Transport {
 public:
  OneHostTransport(int rank, std::vector<HostBatches>* of_ranks)
      : rank_(rank), of_ranks_(of_ranks) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(of_ranks_->size()); }
  BatchId Start(Batch batch, BatchDone done) override {
    own().push_back({std::move(batch), std::move(done)});
    return own().size();
  }
  bool Progress() override {
    bool moved = false;
    for (size_t i = 0; i < own().size(); ++i) moved |= Do(i);
    return moved;
  }
  void Cancel(BatchId id, const Status& why) override {
    own()[id - 1].batch.local_error = why;
    End(&own()[id - 1], why);
  }
  int in_flight() const override {
    int count = 0;
    for (BatchId id = 1; id <= own().size(); ++id) count += count_of(id);
    return count;
  }
  int count_of(BatchId id) const override { return own()[id - 1].done ? 1 : 0; }

 private:
  HostBatches& own() const { return (*of_ranks_)[static_cast<size_t>(rank_)]; }

  bool Do(size_t number) {
    if (!own()[number].done) return false;
    std::vector<HostBatch*> all;
    Status error;
    for (HostBatches& of_rank : *of_ranks_) {
      if (of_rank.size() <= number) return false;
      HostBatch& started = of_rank[number];
      all.push_back(&started);
      if (error.ok()) error = started.batch.local_error;
    }
    for (const HostBatch* started : all) {
      const auto& is_ready = started->batch.inputs_are_ready;
      if (error.ok() && is_ready && !is_ready()) return false;
    }
    if (error.ok()) Combine(all);
    for (HostBatch* started : all) End(started, error);
    return true;
  }

  static void Combine(const std::vector<HostBatch*>& all) {
    const Batch& first = all[0]->batch;
    const size_t bytes =
        static_cast<size_t>(first.segments[0].count) * SizeOf(first.dtype);
    std::string together;
    int64_t most = 0;
    for (const HostBatch* started : all) {
      const void* const in = started->batch.segments[0].in;
      together.append(static_cast<const char*>(in), bytes);
      int64_t number = 0;
      std::memcpy(&number, in, std::min(bytes, sizeof(number)));
      most = std::max(most, number);
    }
    if (first.verb == Verb::kAllreduce) {
      together.assign(reinterpret_cast<const char*>(&most), bytes);
    }
    for (const HostBatch* started : all) {
      std::memcpy(started->batch.segments[0].out, together.data(),
                  together.size());
    }
  }

  const int rank_;
  std::vector<HostBatches>* const of_ranks_;
};

// What the library of a rank does, and was asked.
struct Library {
  Status look;                 // not Ok: there is none
  bool connects = true;        // else it is never ready
  bool queues = true;          // else never what it was given
  bool is_gone = true;         // once it is aborted
  int ids = 0, connected = 0;  // calls
  std::string id;              // that was connected to
  std::vector<CommunicatorCalls> launches;
  bool was_aborted = false;
  int alive = 0;  // communicators
};

class FakeCommunicator final : public Communicator {
 public:
  explicit FakeCommunicator(Library* library) : library_(library) {
    ++library_->alive;
  }
  ~FakeCommunicator() override { --library_->alive; }
  Result<bool> IsReady() override {
    return library_->connects &&
           (library_->queues || library_->launches.empty());
  }
  Status Launch(const CommunicatorCalls& calls, DeviceStream*) override {
    library_->launches.push_back(calls);
    return Status::Ok();
  }
  void Abort() override { library_->was_aborted = true; }
  bool IsGone() override { return library_->is_gone; }

 private:
  Library* const library_;
};

class FakeCommunicators final : public Communicators {
 public:
  FakeCommunicators(int rank, Library* library)
      : rank_(rank), library_(library) {}
  Result<Offer> Look(const std::shared_ptr<const void>&) override {
    if (!library_->look.ok()) return library_->look;
    return Offer{
        std::string(LaneOffer::kGpuBytes, static_cast<char>('a' + rank_)),
        22707};
  }
  Result<std::string> NewId() override {
    ++library_->ids;
    return "made by " + std::to_string(rank_);
  }
  Result<std::unique_ptr<Communicator>> Connect(
      const std::string& id, int, int,
      const std::shared_ptr<const void>&) override {
    ++library_->connected;
    library_->id = id.c_str();
    return std::unique_ptr<Communicator>(
        std::make_unique<FakeCommunicator>(library_));
  }
  bool Takes(DataType, ReduceOp, double) const override { return true; }

 private:
  const int rank_;
  Library* const library_;
};

// One rank, and what its set offers to its lane.
struct Rank {
  Rank(int number, int size, std::vector<HostBatches>* batches)
      : host(number, batches), communicators(number, &library) {
    owner.hosts = OneHost(size);
    owner.ask_to_meet = [this](auto answered) { asked = std::move(answered); };
  }
  // Once the owner is as it shall be.
  void Begin(milliseconds connect_limit) {
    decision = std::make_unique<LaneDecision>(
        &host, queue, &communicators, [] {}, &owner, connect_limit);
  }
  void StartBatch() {
    Batch batch;
    batch.memory = MemoryKind::kCuda;
    batch.segments.emplace_back().ready = gpu.Mark();
    decision->Notice(batch);
  }
  void Answer(const Status& answer) { std::exchange(asked, nullptr)(answer); }

  TestGpu gpu;
  OneHostTransport host;
  Library library;
  FakeCommunicators communicators;
  LaneOwner owner;
  std::shared_ptr<GpuQueue> queue = std::make_shared<GpuQueue>(gpu.device());
  std::function<void(const Status&)> asked;  // null: it has not
  std::unique_ptr<LaneDecision> decision;
};

// Two ranks, which meet when both have asked. Their lines are kept.
class Job {
 public:
  explicit Job(milliseconds connect_limit = std::chrono::minutes(1))
      : connect_limit_(connect_limit), batches_(2) {
    SetLogSink(
        [this](LogLevel, const std::string& line) { lines.push_back(line); });
    for (int rank = 0; rank < 2; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(rank, 2, &batches_));
    }
  }
  ~Job() { SetLogSink(nullptr); }
  Rank& rank(size_t number) { return *ranks_[number]; }

  void Begin() {
    for (const auto& rank : ranks_) rank->Begin(connect_limit_);
  }
  // More often than anything here takes.
  void Step() {
    for (int i = 0; i < 50; ++i) {
      for (const auto& rank : ranks_) {
        rank->gpu.Step();
        rank->host.Progress();
        rank->decision->Advance();
      }
    }
  }
  void Meet(bool all_came = true) {
    for (const auto& rank : ranks_) {
      EXPECT_TRUE(rank->asked != nullptr || !all_came);
      rank->decision->Meet(all_came);
      if (rank->asked) rank->Answer(Status::Ok());
    }
    Step();
  }
  // Batches start, and they meet, so many times.
  void Run(int meetings) {
    for (int i = 0; i < meetings; ++i) {
      for (const auto& rank : ranks_) rank->StartBatch();
      Meet();
    }
  }
  bool wants_to_meet() {
    for (const auto& rank : ranks_) rank->StartBatch();
    return rank(0).asked != nullptr || rank(1).asked != nullptr;
  }

  std::vector<std::string> lines;

 private:
  const milliseconds connect_limit_;
  std::vector<HostBatches> batches_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

const std::string kStaysStaged =
    "tensors on GPUs are reduced in host memory, not by NCCL: ";

TEST(ranks_that_agree_have_a_communicator_after_four_meetings) {
  Job job;
  job.Begin();
  job.Run(3);
  EXPECT_TRUE(job.rank(0).decision->Take() == nullptr);
  job.Run(1);
  for (const size_t number : {0, 1}) {
    Rank& rank = job.rank(number);
    EXPECT_EQ(rank.library.ids, number == 0 ? 1 : 0);
    EXPECT_EQ(rank.library.id, "made by 0");
    ASSERT_EQ(rank.library.launches.size(), 1u);
    EXPECT_EQ(rank.library.launches[0].calls.size(), 4u);
    EXPECT_TRUE(rank.decision->all_have_kernels());
    EXPECT_FALSE(rank.decision->uses_gpu());
    EXPECT_EQ(rank.decision->own_in_flight(), 0);
    const auto taken = rank.decision->Take();
    ASSERT_TRUE(taken != nullptr);
    EXPECT_TRUE(taken->broken().ok());
    EXPECT_TRUE(rank.decision->Take() == nullptr);
    EXPECT_EQ(rank.library.alive, 1);
  }
  EXPECT_FALSE(job.wants_to_meet());
  EXPECT_TRUE(job.lines.empty());
}

TEST(a_rank_that_refuses_keeps_all_staged) {
  Job job;
  job.rank(1).owner.refusal = "HVD_NCCL is 0";
  job.Begin();
  job.Run(1);
  ASSERT_EQ(job.lines.size(), 1u);
  EXPECT_EQ(job.lines[0], kStaysStaged + "rank 1 says: HVD_NCCL is 0");
  EXPECT_FALSE(job.wants_to_meet());
  for (const size_t number : {0, 1}) {
    EXPECT_EQ(job.rank(number).library.ids, 0);
    EXPECT_EQ(job.rank(number).library.connected, 0);
    EXPECT_TRUE(job.rank(number).decision->Take() == nullptr);
  }
}

TEST(a_communicator_that_does_not_get_ready_is_given_up) {
  Job job(milliseconds(0));
  job.rank(0).library.connects = false;
  job.Begin();
  // The ranks connect, try in vain, and tell each other.
  job.Run(3);
  ASSERT_EQ(job.lines.size(), 1u);
  EXPECT_EQ(job.lines[0], kStaysStaged +
                              "rank 0 says: NCCL did not connect within 0 s; "
                              "NCCL_DEBUG=INFO shows what it waits for");
  EXPECT_FALSE(job.wants_to_meet());
  for (const size_t number : {0, 1}) {
    EXPECT_TRUE(job.rank(number).library.launches.empty());
    EXPECT_EQ(job.rank(number).library.alive, 0);
    EXPECT_TRUE(job.rank(number).decision->Take() == nullptr);
  }
}

// The rank that did connect only hears that the other one cannot take part.
TEST(a_rank_that_does_not_connect_has_the_reason) {
  Job job(milliseconds(0));
  job.rank(1).library.connects = false;
  job.Begin();
  job.Run(3);
  ASSERT_EQ(job.lines.size(), 1u);
  EXPECT_EQ(job.lines[0], kStaysStaged +
                              "rank 1 says: NCCL did not connect within 0 s; "
                              "NCCL_DEBUG=INFO shows what it waits for");
}

// Half of what ends the job as a stall, which is less than nothing here.
TEST(a_trial_that_does_not_end_is_given_up) {
  Job job;
  Rank& slow = job.rank(1);
  slow.library.queues = slow.library.is_gone = false;
  slow.owner.stall_shutdown_s = 1e-9;
  job.Begin();
  job.Run(2);
  // Its calls may still get to the GPU.
  EXPECT_TRUE(slow.library.was_aborted);
  EXPECT_TRUE(slow.decision->uses_gpu());
  EXPECT_TRUE(slow.asked == nullptr);
  slow.library.is_gone = true;
  job.Step();
  EXPECT_TRUE(slow.asked != nullptr);
  EXPECT_TRUE(slow.decision->uses_gpu());
  job.Run(1);
  EXPECT_FALSE(slow.decision->uses_gpu());
  ASSERT_EQ(job.lines.size(), 1u);
  EXPECT_EQ(job.lines[0],
            kStaysStaged +
                "rank 1 says: NCCL did not move its first numbers within 0 s, "
                "half of HVD_STALL_SHUTDOWN_S; NCCL_DEBUG=INFO shows what it "
                "waits for");
  EXPECT_FALSE(job.wants_to_meet());
}

TEST(a_trial_begins_when_all_gpus_have_come_and_counts_once) {
  Job job;
  job.Begin();
  // Before the first batch.
  const auto is_open = std::make_shared<bool>(false);
  Rank& late = job.rank(1);
  late.gpu.ComputeOnce(is_open);
  job.Run(2);
  for (const size_t number : {0, 1}) {
    Rank& rank = job.rank(number);
    EXPECT_TRUE(rank.library.launches.empty());
    EXPECT_TRUE(rank.decision->uses_gpu());
    EXPECT_EQ(rank.host.in_flight(), 3);
    EXPECT_EQ(rank.decision->trial_surplus(), 2);
    EXPECT_EQ(rank.decision->own_in_flight(), 1);
  }
  *is_open = true;
  job.Step();
  EXPECT_EQ(job.rank(0).library.launches.size(), 1u);
  EXPECT_EQ(late.library.launches.size(), 1u);
  EXPECT_EQ(late.decision->trial_surplus(), 0);
  job.Run(2);
  EXPECT_TRUE(late.decision->Take() != nullptr);
}

TEST(a_member_that_is_lost_ends_the_trial) {
  Job job;
  Rank& rank = job.rank(0);
  rank.library.queues = false;
  job.Begin();
  rank.decision->EndWithMember(PeerLost("rank 1 failed"));  // of no trial
  job.Run(2);
  EXPECT_EQ(rank.library.launches.size(), 1u);
  EXPECT_FALSE(rank.library.was_aborted);
  rank.decision->EndWithMember(PeerLost("rank 1 failed"));
  job.Step();
  EXPECT_TRUE(rank.library.was_aborted);
  EXPECT_TRUE(rank.asked != nullptr);
  job.Run(1);
  ASSERT_EQ(job.lines.size(), 1u);
  EXPECT_EQ(job.lines[0], kStaysStaged + "rank 0 says: rank 1 failed");
}

TEST(a_meeting_without_a_joined_rank_decides_nothing) {
  Job job;
  job.Begin();
  job.rank(0).StartBatch();
  job.Meet(false);
  EXPECT_EQ(job.rank(0).host.in_flight(), 0);
  // The next batch asks again.
  job.Run(4);
  EXPECT_TRUE(job.rank(0).decision->Take() != nullptr);
}

TEST(a_set_that_ends_asks_no_more) {
  Job job;
  job.Begin();
  job.Run(1);
  Rank& rank = job.rank(0);
  EXPECT_EQ(rank.library.alive, 1);
  rank.Answer(Cancelled("the set has ended"));
  EXPECT_EQ(rank.library.alive, 0);
  rank.StartBatch();
  EXPECT_TRUE(rank.asked == nullptr);
  EXPECT_TRUE(rank.decision->Take() == nullptr);
}

// It may hear an answer that late.
TEST(an_answer_may_come_after_the_decision_has_gone) {
  Job job;
  job.Begin();
  Rank& rank = job.rank(0);
  rank.StartBatch();
  rank.decision.reset();
  // The address sanitizer sees it if that touches what has gone.
  rank.Answer(Cancelled("the set has ended"));
  EXPECT_TRUE(rank.asked == nullptr);
}

}  // namespace
}  // namespace hvd
