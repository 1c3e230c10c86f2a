// SPDX-License-Identifier: Apache-2.0
// BackgroundLoop: what comes in one pass is executed in the order of the log.
#include "core/background_loop.h"

#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/log.h"
#include "harness.h"
#include "one_peer.h"

namespace hvd {
namespace {

// Nobody rings it. Keeps for how long the loop would spin.
class SilentBell : public Doorbell {
 public:
  void Ring() override {}
  void Wait(std::chrono::microseconds /*limit*/,
            std::chrono::microseconds spin) override {
    spins_us.push_back(spin.count());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (static_cast<int>(spins_us.size()) == end_after) end();
  }
  std::vector<int64_t> spins_us;
  int end_after = 0;
  std::function<void()> end;
};

AgreedBatch BatchOf(const std::string& name) {
  AgreedTensor tensor;
  tensor.key.name = name;
  return {{tensor}};
}

// The end of rank 0, which took part in the log up to that record.
Envelope EndOfLeader(uint64_t log_number) {
  PeerEndMessage end;
  end.rank = 0;
  end.failed = true;
  end.text = "out of memory";
  end.log_seen[0] = log_number;
  return {0, PeerEnds{PassOn::kToNobody, 0, {end}}};
}

// Runs rank 1 until its entries are done. Returns their messages, by entry.
// `pairs`: further sets of both ranks, from the start.
std::vector<std::string> Run(OnePeer* peer,
                             const std::vector<std::string>& names,
                             int pairs = 0) {
  std::vector<std::string> messages(names.size());
  size_t done = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    auto entry = std::make_shared<Entry>();
    entry->ticket = i + 1;
    entry->request.key.name = names[i];
    entry->request.signature.shapes = {{1}};
    entry->inputs = {nullptr};
    entry->outputs = {nullptr};
    entry->done = [&, i](const Status& status) {
      messages[i] = status.message();
      if (++done == names.size())
        peer->queue.PushAnyway(EndCommand{false, "the end"});
    };
    EXPECT_TRUE(peer->queue.Push(EnqueueCommand{0, entry}).ok());
    if (names[i] == peer->cancelled) {
      peer->queue.PushAnyway(CancelCommand{0, i + 1, Cancelled("no more")});
    }
  }
  CommCounters counters;
  SetRegistry registry;
  BackgroundLoop loop(
      peer, nullptr, &peer->queue, &registry, peer->options,
      std::make_shared<StackRequests>(std::chrono::duration<double>(60)),
      &counters);
  std::vector<ProcessSetPtr> sets;
  for (int id = 0; id <= pairs; ++id) {
    sets.push_back(std::make_shared<ProcessSet>(ProcessSet{{0, 1}, 1, id, id}));
  }
  EXPECT_TRUE(loop.Begin(sets).ok());
  loop.Run();
  return messages;
}

// One message of each kind that a peer may send, but for ends.
std::vector<Envelope> SomeMessages() {
  AgreedBatch absent = BatchOf("c");
  absent.tensors[0].signature.emplace().shapes = {{1}};
  absent.absent = {1};
  SetChange change;
  change.serial = change.id = change.slot = 1;
  change.ranks = {0, 1};
  return {{0, LogMessage{1, {BatchOf("a"), absent}}},
          {0, LogMessage{1, {change, Tuning{1, 512, 1}, Skipped{2}}}},
          {0, Report{0, {CachedSubmissions{0, {1}}, Join{}}}},
          {0, HostTold{1}},
          {0, Beat{true, false, 5, 7}},
          {0, Beat{false, false, 5, 7}},
          {0, TimelineControl{1, true, true}},
          {0, TimelineChunk{1, false, "abc"}},
          {0, TimelineReceipt{0}}};
}

// It ends this rank or not. All entries are answered.
TEST(background_loop_survives_messages_that_make_no_sense) {
  SetLogSink([](LogLevel, const std::string&) {});
  std::mt19937 random(1);
  const std::vector<Envelope> good = SomeMessages();
  int parsed = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = Encode(good[random() % good.size()]);
    for (unsigned hits = 1 + random() % 3; hits > 0; --hits) {
      // Mostly small numbers: they are more often taken.
      const unsigned value = random() % 4 == 0 ? random() : random() % 4;
      bytes[random() % bytes.size()] = static_cast<char>(value);
    }
    Result<Envelope> envelope = Decode(bytes);
    if (!envelope.ok() ||
        std::holds_alternative<PeerEnds>(envelope.value().message)) {
      continue;
    }
    ++parsed;
    OnePeer peer;
    peer.inbox.push_back(std::move(envelope.value()));
    peer.inbox.push_back(EndOfLeader(0));
    for (const std::string& message : Run(&peer, {"a", "b"})) {
      EXPECT_FALSE(message.empty());
    }
  }
  SetLogSink(nullptr);
  EXPECT_TRUE(parsed > 1000);
}

SetChange ChangeOf(SetStep step, int number, std::vector<int> ranks) {
  SetChange change;
  change.step = step;
  change.serial = change.id = change.slot = number;
  change.ranks = std::move(ranks);
  change.status = FailedPrecondition("no");
  return change;
}

// They were applied once.
TEST(background_loop_breaks_at_changes_of_sets_that_no_leader_says) {
  SetLogSink([](LogLevel, const std::string&) {});
  // This rank is not in the set, so it has no answer to wait for.
  const SetChange prepare = ChangeOf(SetStep::kPrepare, 1, {0}),
                  commit = ChangeOf(SetStep::kCommit, 1, {0}),
                  refuse = ChangeOf(SetStep::kRefuse, 1, {}),
                  remove = ChangeOf(SetStep::kRemove, 1, {});
  SetChange in_use = ChangeOf(SetStep::kPrepare, 2, {0, 1});
  in_use.slot = 1;
  const SetChange own = ChangeOf(SetStep::kPrepare, 2, {0, 1});
  const struct {
    int pairs;
    std::vector<LogRecord> records;
    const char* text;
  } kCases[] = {
      {0, {prepare, commit, refuse}, "refuses process set number 1, "},
      {0, {prepare, commit, commit}, "commits to process set 1, "},
      {0, {prepare, commit, in_use}, "begins process set 2, in the place of "},
      {0, {prepare, commit, remove, remove}, "removes process set 1, "},
      {0, {remove}, "removes process set 1, "},
      {1, {in_use}, "begins process set 2, in the place of process set 1."},
      {1, {refuse}, "refuses process set number 1, "},
      {1, {remove, own}, "before this rank has left process set 1."},
      {1,
       {own, ChangeOf(SetStep::kRefuse, 2, {})},
       "before this rank has answered to process set 2."},
      {1,
       {own, ChangeOf(SetStep::kCommit, 2, {0, 1})},
       "before this rank has answered to process set 2."},
  };
  for (const auto& nonsense : kCases) {
    OnePeer peer;
    peer.inbox.push_back({0, LogMessage{1, nonsense.records}});
    const std::string message = Run(&peer, {"a"}, nonsense.pairs)[0];
    for (const char* part :
         {"'a' cannot complete: this rank failed: the log ", nonsense.text}) {
      EXPECT_NE(message.find(part), std::string::npos);
    }
  }
  SetLogSink(nullptr);
}

// A peer that is late costs it no more of its time.
TEST(background_loop_spins_once_for_what_peers_owe_it) {
  auto bell = std::make_shared<SilentBell>();
  OnePeer peer(bell);
  peer.rings = true;
  peer.wire = PeerWire::kIsSilent;
  peer.options.spin_us = 10000;
  bell->end_after = 30;  // of a millisecond or more
  bell->end = [&] { peer.queue.PushAnyway(EndCommand{false, "the end"}); };
  Run(&peer, {"a"});
  const std::vector<int64_t>& spins_us = bell->spins_us;
  ASSERT_TRUE(spins_us.size() >= 30);
  EXPECT_TRUE(spins_us[0] > 60 && spins_us[0] <= 10000);
  // The second is for what is left of the time.
  EXPECT_TRUE(spins_us[1] <= spins_us[0] - 1000 || spins_us[1] == 60);
  for (size_t i = 11; i < 30; ++i) EXPECT_EQ(spins_us[i], 60);
}

TEST(background_loop_executes_batches_and_values_in_the_order_of_the_log) {
  OnePeer peer;
  peer.inbox.push_back(
      {0, LogMessage{1, {BatchOf("b"), Tuning{1, 512, 1}, BatchOf("a")}}});
  peer.inbox.push_back(EndOfLeader(1));
  Run(&peer, {"a", "b"});
  const Deeds first(peer.deeds.begin(), peer.deeds.begin() + 3);
  EXPECT_TRUE((first == Deeds{"start b", "chunks of 512", "start a"}));
}

// The record and the end behind it are read in the same pass.
TEST(background_loop_cancels_a_batch_that_its_leader_takes_no_part_in) {
  OnePeer peer;
  peer.inbox.push_back({0, LogMessage{1, {BatchOf("a")}}});
  peer.inbox.push_back(EndOfLeader(0));
  const std::vector<std::string> messages = Run(&peer, {"a"});
  EXPECT_TRUE((peer.deeds == Deeds{"start a", "cancel 1"}));
  EXPECT_EQ(messages[0], "rank 0 (near) failed: out of memory");
}

// Each is answered once.
TEST(background_loop_without_memory_fails_what_it_would_start) {
  SetLogSink([](LogLevel, const std::string&) {});
  OnePeer peer;
  peer.wire = PeerWire::kHasNoMemory;
  peer.cancelled = "c";
  peer.inbox.push_back(
      {0, LogMessage{1, {BatchOf("a"), BatchOf("b"), BatchOf("c")}}});
  const std::vector<std::string> messages = Run(&peer, {"a", "b", "c"});
  SetLogSink(nullptr);
  EXPECT_TRUE(peer.deeds == Deeds{"start a"});
  EXPECT_EQ(peer.end.log_seen.at(0), 0u);  // it takes part in nothing
  EXPECT_NE(messages[0].find("'a' cannot complete: this rank is out of memory"),
            std::string::npos);
  EXPECT_NE(messages[1].find("ran out of memory"), std::string::npos);
  EXPECT_EQ(messages[2], "no more");
}

TEST(background_loop_takes_no_part_from_the_batch_on_that_broke_down) {
  SetLogSink([](LogLevel, const std::string&) {});
  OnePeer peer;
  peer.wire = PeerWire::kBreaks;
  peer.inbox.push_back(
      {0, LogMessage{1, {Skipped{1}, BatchOf("a"), BatchOf("b")}}});
  Run(&peer, {"a", "b"});
  SetLogSink(nullptr);
  EXPECT_EQ(peer.end.text, "the wire broke");
  EXPECT_EQ(peer.end.log_seen.at(0), 1u);
}

TEST(background_loop_takes_the_log_of_its_leader_alone) {
  SetLogSink([](LogLevel, const std::string&) {});
  OnePeer peer;
  peer.sender = 1;
  peer.inbox.push_back({0, LogMessage{1, {BatchOf("a")}}});
  const std::vector<std::string> messages = Run(&peer, {"a"});
  SetLogSink(nullptr);
  EXPECT_TRUE(peer.deeds.empty());
  EXPECT_NE(messages[0].find("a log came from a rank that does not send it"),
            std::string::npos);
}

// Else the batches that are left would wait for the memory that it waits for.
TEST(background_loop_forgets_a_set_that_is_not_going_to_be) {
  OnePeer peer;
  peer.full_slot = 1;
  const SetChange prepare = ChangeOf(SetStep::kPrepare, 1, {0, 1});
  peer.inbox.push_back({0, LogMessage{1, {prepare}}});
  peer.inbox.push_back(EndOfLeader(0));
  Run(&peer, {"a"});
  EXPECT_TRUE(peer.deeds == Deeds{"forget"});
}

}  // namespace
}  // namespace hvd
