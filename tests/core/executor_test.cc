// SPDX-License-Identifier: Apache-2.0
// Executor: which entries are on the wire, over a transport that waits to be
// told, and the values that the log changes. What reaches the wire is tested
// through the runtime.
#include "core/executor.h"

#include <cmath>
#include <string>
#include <utility>

#include "harness.h"
#include "set_of.h"
#include "thread_world.h"

namespace hvd {
namespace {

// Finishes its batches when told to, the newest first.
class HeldTransport : public Transport {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  BatchId Start(Batch batch, BatchDone done) override {
    sizes_.push_back(batch.segments.size());
    dones_.push_back(std::move(done));
    return dones_.size();
  }
  bool Progress() override {
    if (dones_.empty()) return false;
    BatchDone done = std::move(dones_.back());
    dones_.pop_back();
    done(std::exchange(next_, Status::Ok()));
    return true;
  }
  void Cancel(BatchId id, const Status& why) override {
    cancelled_.push_back(id);
    BatchDone done = std::move(dones_[id - 1]);
    dones_.erase(dones_.begin() + static_cast<int64_t>(id) - 1);
    done(why);
  }
  int in_flight() const override { return static_cast<int>(dones_.size()); }

  const std::vector<size_t>& sizes() const { return sizes_; }
  const std::vector<BatchId>& cancelled() const { return cancelled_; }
  void FailNext(Status why) { next_ = std::move(why); }

 private:
  Status next_;
  std::vector<size_t> sizes_;
  std::vector<BatchId> cancelled_;
  std::vector<BatchDone> dones_;
};

// Entries "t<ticket>" of step 5; `done` counts.
ReadyBatch MakeBatch(uint64_t log_number, std::vector<uint64_t> tickets,
                     int* done) {
  ReadyBatch ready;
  ready.log_number = log_number;
  for (uint64_t ticket : tickets) {
    Outstanding& tensor = ready.tensors.emplace_back();
    tensor.entry = std::make_shared<Entry>();
    Entry& entry = *tensor.entry;
    entry.ticket = ticket;
    entry.request.key.name = "t" + std::to_string(ticket);
    entry.request.step = 5;
    entry.request.signature.shapes = {{2}};
    entry.inputs = {nullptr};
    entry.outputs = {nullptr};
    entry.done = [done](const Status&) { ++*done; };
    ready.first_dims.emplace_back();
  }
  return ready;
}

TEST(executor_knows_the_entries_on_the_wire) {
  auto transport = std::make_unique<HeldTransport>();
  HeldTransport* held = transport.get();
  Executor executor(LaneTable::HostOnly(std::move(transport)));
  int done = 0;
  executor.Execute(MakeBatch(1, {11, 12}, &done));
  ReadyBatch second = MakeBatch(2, {21, 22}, &done);
  second.tensors[1].cancelled = true;
  executor.Execute(std::move(second));
  EXPECT_TRUE((held->sizes() == std::vector<size_t>{2, 2}));

  ASSERT_TRUE(executor.FindRunning(12) != nullptr);
  EXPECT_EQ(executor.FindRunning(12)->key.name, "t12");
  EXPECT_EQ(executor.FindRunning(12)->step, 5);
  EXPECT_TRUE(executor.FindRunning(21) != nullptr);
  // Its done was called when it was cancelled.
  EXPECT_TRUE(executor.FindRunning(22) == nullptr);
  EXPECT_TRUE(executor.FindRunning(99) == nullptr);

  EXPECT_TRUE(executor.Progress());
  EXPECT_EQ(done, 1);
  EXPECT_TRUE(executor.FindRunning(21) == nullptr);
  EXPECT_TRUE(executor.FindRunning(11) != nullptr);
  EXPECT_TRUE(executor.Progress());
  EXPECT_EQ(done, 3);
  EXPECT_TRUE(executor.FindRunning(11) == nullptr);
}

// Ends a batch that is cancelled when it is told to, as a GPU's lane does.
class LateTransport : public Transport {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  BatchId Start(Batch, BatchDone done) override {
    done_ = std::move(done);
    return 1;
  }
  bool Progress() override { return false; }
  void Cancel(BatchId, const Status& why) override {
    ++cancels;
    why_ = why;
  }
  int in_flight() const override { return done_ ? 3 : 0; }
  int count_of(BatchId) const override { return 2; }
  void End() { std::exchange(done_, nullptr)(why_); }

  int cancels = 0;

 private:
  BatchDone done_;
  Status why_;
};

TEST(executor_waits_for_a_gpu_and_not_for_what_was_cancelled) {
  auto transport = std::make_unique<LateTransport>();
  LateTransport* late = transport.get();
  Executor executor(LaneTable::HostOnly(std::move(transport)));
  int done = 0;
  executor.Execute(MakeBatch(7, {1}, &done));
  EXPECT_EQ(executor.needed_in_flight(), 3);
  for (int i = 0; i < 3; ++i) executor.CancelAfter(6, PeerLost("gone"));
  EXPECT_EQ(executor.needed_in_flight(), 1);
  EXPECT_EQ(late->cancels, 1);
  EXPECT_EQ(done, 0);
  late->End();
  EXPECT_EQ(done, 1);
  EXPECT_TRUE(executor.FindRunning(1) == nullptr);
}

// Its batches leave the wire when they are told to.
class LeavingTransport : public Transport {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  BatchId Start(Batch, BatchDone done) override {
    dones_.push_back(std::move(done));
    on_wire_.insert(dones_.size());
    return dones_.size();
  }
  bool Progress() override { return false; }
  void Cancel(BatchId id, const Status& why) override {
    std::exchange(dones_[id - 1], nullptr)(why);
  }
  int in_flight() const override { return static_cast<int>(on_wire_.size()); }
  int count_of(BatchId id) const override {
    return static_cast<int>(on_wire_.count(id));
  }
  void Leave(BatchId id) { on_wire_.erase(id); }

 private:
  std::vector<BatchDone> dones_;
  std::set<BatchId> on_wire_;
};

TEST(executor_waits_for_a_batch_although_a_cancelled_one_has_left) {
  auto transport = std::make_unique<LeavingTransport>();
  LeavingTransport* leaving = transport.get();
  Executor executor(LaneTable::HostOnly(std::move(transport)));
  int done = 0;
  executor.Execute(MakeBatch(7, {1}, &done));
  executor.Execute(MakeBatch(8, {2}, &done));
  executor.CancelAfter(7, PeerLost("gone"));
  EXPECT_EQ(executor.needed_in_flight(), 1);
  leaving->Leave(2);
  EXPECT_EQ(executor.needed_in_flight(), 1);
  leaving->Leave(1);
  EXPECT_EQ(executor.needed_in_flight(), 0);
  executor.Abandon(PeerLost("gone"));
}

TEST(executor_abandons_what_a_gpu_does_not_end) {
  auto transport = std::make_unique<LateTransport>();
  LateTransport* late = transport.get();
  Executor executor(LaneTable::HostOnly(std::move(transport)));
  int done = 0;
  executor.Execute(MakeBatch(7, {1, 2}, &done));
  executor.CancelAfter(0, PeerLost("gone"));
  EXPECT_EQ(done, 0);
  executor.Abandon(PeerLost("gone"));
  EXPECT_EQ(done, 2);
  EXPECT_EQ(late->cancels, 1);
  late->End();
  EXPECT_EQ(done, 2);
}

// Keeps what it is to run.
struct HeldRunner {
  std::vector<std::function<void()>> closures;
  const Runner run = [this](std::function<void()> closure) {
    closures.push_back(std::move(closure));
  };
};

// Keeps the batch that it is given.
class Keeper : public LateTransport {
 public:
  BatchId Start(Batch batch, BatchDone done) override {
    kept = batch;
    return LateTransport::Start(std::move(batch), std::move(done));
  }
  Batch kept;
};

// A lane may cut it into pieces, and asks for the segments of each.
TEST(executor_finds_what_is_not_finite_in_a_piece_of_a_reducescatter) {
  auto transport = std::make_unique<Keeper>();
  Keeper* keeper = transport.get();
  Executor executor(LaneTable::HostOnly(std::move(transport)), true);
  int done = 0;
  ReadyBatch ready = MakeBatch(1, {1, 2}, &done);
  const float good[] = {1, 2, 3, 4, 5, 6}, bad[] = {1, 1e5f};
  const float* const inputs[] = {good, bad};
  for (int t = 0; t < 2; ++t) {
    Entry& entry = *ready.tensors[static_cast<size_t>(t)].entry;
    entry.request.signature.verb = Verb::kReducescatter;
    entry.request.signature.wire_dtype = DataType::kFloat16;
    entry.request.signature.shapes = {{t == 0 ? 6 : 2}};
    entry.inputs = {inputs[t]};
  }
  executor.Execute(std::move(ready));
  const Batch& batch = keeper->kept;
  ASSERT_TRUE(batch.find_not_finite != nullptr);
  EXPECT_EQ(batch.find_not_finite(batch.segments), 1);  // as float16
  EXPECT_EQ(batch.find_not_finite({batch.segments[0]}), -1);
  EXPECT_EQ(batch.find_not_finite({batch.segments[1]}), 0);
  executor.Abandon(Cancelled("the end"));
}

// They are on their way to the peers all the same.
TEST(executor_finds_what_is_not_finite_in_rows_that_nobody_here_waits_for) {
  auto transport = std::make_unique<Keeper>();
  Keeper* keeper = transport.get();
  Executor executor(LaneTable::HostOnly(std::move(transport)), true);
  int done = 0;
  ReadyBatch ready = MakeBatch(1, {1, 2}, &done);
  const float good[] = {1, 2}, bad[] = {1, std::nanf("")};
  const float* const inputs[] = {good, bad};
  for (size_t t = 0; t < 2; ++t) {
    Entry& entry = *ready.tensors[t].entry;
    entry.request.signature.verb = Verb::kAllgather;
    entry.inputs = {inputs[t]};
  }
  ready.tensors[1].cancelled = true;
  executor.Execute(std::move(ready));
  const Batch& batch = keeper->kept;
  ASSERT_TRUE(batch.find_not_finite != nullptr);
  EXPECT_EQ(batch.find_not_finite(batch.segments), 1);
  executor.Abandon(Cancelled("the end"));
}

TEST(executor_loses_no_rows_of_any_alltoall_of_a_batch) {
  for (const size_t lost : {0, 1}) {
    auto transport = std::make_unique<Keeper>();
    Keeper* keeper = transport.get();
    Executor executor(LaneTable::HostOnly(std::move(transport)));
    int done = 0;
    ReadyBatch ready = MakeBatch(1, {1, 2}, &done);
    ready.absent = {1};
    for (size_t t = 0; t < 2; ++t) {
      Entry& entry = *ready.tensors[t].entry;
      entry.request.signature.verb = Verb::kAlltoall;
      entry.splits = {{t == lost ? 1 : 2, t == lost ? 1 : 0}};
    }
    executor.Execute(std::move(ready));
    EXPECT_NE(keeper->kept.local_error.message().find(
                  "'t" + std::to_string(lost + 1) + "' sends 1 rows to rank 1"),
              std::string::npos);
    executor.Abandon(Cancelled("the end"));
  }
}

TEST(executor_leaves_dones_to_each_ones_runner) {
  auto transport = std::make_unique<HeldTransport>();
  Executor executor(LaneTable::HostOnly(std::move(transport)));
  HeldRunner runner, another;
  int done = 0;
  ReadyBatch batch = MakeBatch(1, {1, 2, 3, 4}, &done);
  batch.tensors[1].entry->runner = &runner.run;
  batch.tensors[2].entry->runner = &another.run;
  batch.tensors[3].entry->runner = &another.run;
  batch.tensors[3].cancelled = true;
  executor.Execute(std::move(batch));
  EXPECT_TRUE(executor.Progress());
  // Only the one without a runner is done. Nothing is on the wire.
  EXPECT_EQ(done, 1);
  EXPECT_TRUE(executor.FindRunning(2) == nullptr);
  // All threads of one may be busy until the other's have run.
  ASSERT_EQ(runner.closures.size(), size_t{1});
  ASSERT_EQ(another.closures.size(), size_t{1});
  another.closures[0]();
  EXPECT_EQ(done, 2);
  runner.closures[0]();
  EXPECT_EQ(done, 3);
}

TEST(executor_ends_a_batch_that_nobody_waits_for) {
  auto transport = std::make_unique<HeldTransport>();
  HeldTransport* held = transport.get();
  Executor executor(LaneTable::HostOnly(std::move(transport)));
  const Executor::Clock::time_point limit{std::chrono::seconds(5)};
  int done = 0;
  ReadyBatch batch = MakeBatch(1, {1, 2, 3}, &done);
  batch.tensors[0].cancelled = true;
  executor.Execute(std::move(batch));
  const Status why = Cancelled("the step was aborted");
  executor.Unwant(2, why, limit);
  executor.Unwant(99, why, limit);  // which is not there
  // Another step waits for the third.
  executor.EndUnwanted(limit);
  EXPECT_TRUE(held->cancelled().empty());
  // It has its time, from the first on.
  executor.Unwant(3, why, limit + std::chrono::seconds(1));
  executor.EndUnwanted(limit - std::chrono::milliseconds(1));
  EXPECT_TRUE(held->cancelled().empty());
  EXPECT_EQ(done, 0);
  executor.EndUnwanted(limit);
  EXPECT_TRUE((held->cancelled() == std::vector<BatchId>{1}));
  EXPECT_EQ(done, 2);
  executor.EndUnwanted(limit);
  EXPECT_EQ(held->cancelled().size(), size_t{1});
}

TEST(executor_calls_the_dones_of_a_failure_itself) {
  auto transport = std::make_unique<HeldTransport>();
  HeldTransport* held = transport.get();
  Executor executor(LaneTable::HostOnly(std::move(transport)));
  HeldRunner runner;
  int done = 0;
  ReadyBatch batch = MakeBatch(1, {1, 2}, &done);
  for (Outstanding& tensor : batch.tensors) tensor.entry->runner = &runner.run;
  executor.Execute(std::move(batch));
  held->FailNext(PeerLost("rank 1 failed"));
  EXPECT_TRUE(executor.Progress());
  EXPECT_EQ(done, 2);
  EXPECT_TRUE(runner.closures.empty());
}

TEST(executor_tells_the_first_batch_of_the_log_that_broke_down) {
  auto transport = std::make_unique<HeldTransport>();
  HeldTransport* held = transport.get();
  Executor executor(LaneTable::HostOnly(std::move(transport)));
  int done = 0;
  for (uint64_t i = 1; i <= 3; ++i) executor.Execute(MakeBatch(i, {i}, &done));
  EXPECT_FALSE(executor.breakdown().has_value());
  held->FailNext(Internal("third"));
  EXPECT_TRUE(executor.Progress());
  executor.BreakDown({held, 1}, Internal("first"));
  held->FailNext(Internal("second"));
  EXPECT_TRUE(executor.Progress());
  ASSERT_TRUE(executor.breakdown().has_value());
  EXPECT_EQ(executor.breakdown()->log_number, 1u);
  EXPECT_EQ(executor.breakdown()->status.message(), "first");
  executor.Abandon(Cancelled("the end"));
}

TEST(executor_takes_over_the_chunks_of_the_log) {
  ThreadWorld world(1, {}, 4096);
  auto backend = world.Open(0);
  Executor executor(LaneTable::HostOnly(
      std::move(backend->NewTransport(0, SetOf({0}, 0)).value())));
  const ChunkLimits limits = executor.chunk_limits();
  EXPECT_EQ(limits.bytes, 4096);
  executor.Tune({1, limits.most_bytes, 1});
  EXPECT_EQ(executor.chunk_limits().bytes, limits.most_bytes);
  // 0: the leader's transport has none to tune.
  executor.Tune({1, 0, 1});
  EXPECT_EQ(executor.chunk_limits().bytes, limits.most_bytes);
}

}  // namespace
}  // namespace hvd
