// SPDX-License-Identifier: Apache-2.0
// Memory that runs out at any one moment: each entry is answered, and once.
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "core/background_loop.h"
#include "core/control/negotiator.h"
#include "core/executor.h"
#include "core/log.h"
#include "harness.h"
#include "one_peer.h"

namespace {
// So many more allocations succeed, and then one fails. Negative: none fails.
int allocations_left = -1;
}  // namespace

void* operator new(size_t bytes) {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  void* const data = std::malloc(bytes == 0 ? 1 : bytes);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}
// A sanitizer's own would not go with this delete.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }

namespace hvd {
namespace {

// Whether it found as much memory as it wanted: so many allocations.
template <typename Work>
bool EndsWith(int allocations, const Work& work) {
  allocations_left = allocations;
  try {
    work();
  } catch (const std::bad_alloc&) {
    EXPECT_EQ(allocations_left, -1);
  }
  return std::exchange(allocations_left, -1) >= 0;
}

// Two entries, which end by their runners, and how often each was answered.
struct Entries {
  Entries() {
    for (size_t i = 0; i < 2; ++i) {
      EntryPtr entry = std::make_shared<Entry>();
      entry->request.key.name = std::string(100, i == 0 ? 'a' : 'b');
      entry->request.signature.shapes = {{1}};
      entry->inputs = {nullptr};
      entry->outputs = {nullptr};
      entry->done = [this, i](const Status&) { ++dones[i]; };
      entries.push_back(std::move(entry));
    }
  }
  void ExpectAnswered() const {
    for (const int done : dones) EXPECT_EQ(done, 1);
  }

  std::vector<EntryPtr> entries;
  int dones[2] = {};
};

TEST(no_memory_for_what_the_log_agrees_on) {
  bool has_ended = false;
  int allocations = 0;
  for (; !has_ended; ++allocations) {
    Entries of;
    Negotiator negotiator(0, 1, {0, 1}, Options::Defaults(), 1 << 20, {});
    AgreedBatch batch;
    for (const EntryPtr& entry : of.entries) {
      negotiator.Submit(entry);
      AgreedTensor& tensor = batch.tensors.emplace_back();
      tensor.key = entry->request.key;
      tensor.signature_number = batch.tensors.size();
    }
    const LogMessage log{1, {batch}};
    has_ended = EndsWith(allocations, [&] { (void)negotiator.HandleLog(log); });
    while (const std::optional<ReadyItem> item = negotiator.TakeReady()) {
      for (const auto& tensor : std::get<ReadyBatch>(*item).tensors) {
        tensor.entry->done(Status::Ok());
      }
    }
    negotiator.FailAll(PeerLost("no memory"));
    of.ExpectAnswered();
  }
  EXPECT_TRUE(allocations > 3);
}

// Ends its batches when they are cancelled.
class WaitingTransport : public Transport {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  BatchId Start(Batch batch, BatchDone done) override {
    batch_ = std::move(batch);
    done_ = std::move(done);
    return 1;
  }
  bool Progress() override { return false; }
  void Cancel(BatchId, const Status& why) override {
    std::exchange(done_, nullptr)(why);
  }
  int in_flight() const override { return done_ ? 1 : 0; }

 private:
  Batch batch_;
  BatchDone done_;
};

TEST(no_memory_for_a_batch_that_is_to_start) {
  bool has_ended = false;
  int allocations = 0;
  for (; !has_ended; ++allocations) {
    Entries of;
    Executor executor(
        LaneTable::HostOnly(std::make_unique<WaitingTransport>()));
    ReadyBatch ready;
    ready.log_number = 1;
    for (const EntryPtr& entry : of.entries) {
      ready.tensors.push_back({entry, false});
      ready.first_dims.emplace_back();
    }
    has_ended =
        EndsWith(allocations, [&] { executor.Execute(std::move(ready)); });
    executor.Abandon(PeerLost("no memory"));
    of.ExpectAnswered();
  }
  EXPECT_TRUE(allocations > 3);
}

// Batch 1 has been carried out. One entry has a runner of its own.
TEST(no_memory_for_a_batch_that_ends) {
  bool has_ended = false;
  int allocations = 0;
  for (; !has_ended; ++allocations) {
    Entries of;
    const Runner at_once = [](std::function<void()> dones) { dones(); };
    of.entries[0]->runner = &at_once;
    auto waiting = std::make_unique<WaitingTransport>();
    WaitingTransport* const transport = waiting.get();
    Executor executor(LaneTable::HostOnly(std::move(waiting)));
    ReadyBatch ready;
    ready.log_number = 1;
    for (const EntryPtr& entry : of.entries) {
      ready.tensors.push_back({entry, false});
      ready.first_dims.emplace_back();
    }
    executor.Execute(std::move(ready));
    has_ended =
        EndsWith(allocations, [&] { transport->Cancel(1, Status::Ok()); });
    of.ExpectAnswered();
  }
  EXPECT_TRUE(allocations > 2);
}

// The rank leaves while its tensors wait.
TEST(no_memory_for_commands_and_the_end) {
  SetLogSink([](LogLevel, const std::string&) {});
  bool has_ended = false;
  int allocations = 0;
  for (; !has_ended; ++allocations) {
    Entries of;
    OnePeer peer;
    peer.wire = PeerWire::kIsSilent;
    CommCounters counters;
    SetRegistry registry;
    BackgroundLoop loop(
        &peer, nullptr, &peer.queue, &registry, peer.options,
        std::make_shared<StackRequests>(std::chrono::duration<double>(60)),
        &counters);
    EXPECT_TRUE(
        loop.Begin({std::make_shared<ProcessSet>(ProcessSet{{0, 1}, 1, 0, 0})})
            .ok());
    for (const EntryPtr& entry : of.entries) {
      EXPECT_TRUE(peer.queue.Push(EnqueueCommand{0, entry}).ok());
    }
    peer.queue.PushAnyway(EndCommand{false, "hvd.shutdown()"});
    has_ended = EndsWith(allocations, [&] { loop.Run(); });
    of.ExpectAnswered();
    EXPECT_FALSE(peer.queue.Push(EnqueueCommand{0, of.entries[0]}).ok());
  }
  EXPECT_TRUE(allocations > 20);
  SetLogSink(nullptr);
}

}  // namespace
}  // namespace hvd
