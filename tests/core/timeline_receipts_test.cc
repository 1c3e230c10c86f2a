// SPDX-License-Identifier: Apache-2.0
// Timeline on one rank: what it sends, and what it does without receipts.
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/batch_times.h"
#include "core/timeline.h"
#include "core/timeline_file.h"
#include "core/trace_events.h"
#include "harness.h"
#include "temp_directory.h"

namespace hvd {
namespace {

TEST(timeline_of_a_job_is_of_the_traced_ranks_alone) {
  Topology topology;
  topology.size = 66;
  topology.host_of.assign(66, 0);
  for (const auto& [rank, is_traced] : {std::pair(63, true), {64, false}}) {
    topology.rank = rank;
    CommCounters counters;
    Timeline timeline(topology, nullptr, &counters);
    timeline.StartWithJob(false);
    EXPECT_EQ(timeline.trace()->on(), is_traced);
  }
}

// Keeps what is sent.
class KeptMessages : public Channel {
 public:
  void Send(int peer, SharedBytes message) override {
    EXPECT_EQ(peer, to);
    sent.push_back(Decode(*message).value().message);
  }
  bool Receive(int*, std::string*) override { return false; }
  bool Flush() override { return false; }
  Status status() const override { return Status::Ok(); }

  int to = 0;
  std::vector<Message> sent;
};

Topology PairOf(int rank) {
  Topology topology;
  topology.rank = rank;
  topology.size = 2;
  topology.host_of = {0, 0};
  return topology;
}

// Rank 0 may be stopped for as long as it takes somebody to find a bug.
TEST(timeline_of_a_rank_that_gets_no_receipts_keeps_its_events) {
  KeptMessages channel;
  CommCounters counters;
  Timeline timeline(PairOf(1), &channel, &counters);
  Timeline::Time now{};
  EXPECT_TRUE(timeline.Handle(0, TimelineControl{7, true, true}, now).ok());
  const auto look = [&](int times) {
    for (int i = 0; i < times; ++i) {
      timeline.trace()->Cycle();
      now += std::chrono::milliseconds(300);
      timeline.Look(now);
    }
  };
  look(20);
  EXPECT_EQ(channel.sent.size(), 2u);
  // A receipt for the timeline before.
  EXPECT_TRUE(timeline.Handle(0, TimelineReceipt{6}).ok());
  look(5);
  EXPECT_EQ(channel.sent.size(), 2u);
  EXPECT_TRUE(timeline.Handle(0, TimelineReceipt{7}).ok());
  look(5);
  ASSERT_EQ(channel.sent.size(), 3u);
  const auto& third = std::get<TimelineChunk>(channel.sent[2]);
  EXPECT_EQ(DecodeTrace(third.events).value().events.size(), 18u + 5 + 1);
  EXPECT_FALSE(timeline.Handle(1, TimelineReceipt{7}).ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(timeline.Handle(0, TimelineReceipt{7}).ok());
  }
  EXPECT_FALSE(timeline.Handle(0, TimelineReceipt{7}).ok());
  // The last one is sent whatever rank 0 does.
  look(3);
  EXPECT_EQ(channel.sent.size(), 5u);
  timeline.Leave(true, now);
  ASSERT_EQ(channel.sent.size(), 6u);
  EXPECT_TRUE(std::get<TimelineChunk>(channel.sent[5]).is_last);
  // Another timeline begins without debts.
  EXPECT_TRUE(timeline.Handle(0, TimelineControl{8, true, true}, now).ok());
  look(3);
  EXPECT_EQ(channel.sent.size(), 8u);
}

TEST(timeline_rank_0_gives_receipts_for_all_chunks_but_the_last) {
  KeptMessages channel;
  channel.to = 1;
  CommCounters counters;
  Timeline timeline(PairOf(0), &channel, &counters);
  // Also for those that come too late.
  EXPECT_TRUE(timeline.Handle(1, TimelineChunk{4, false, ""}).ok());
  ASSERT_EQ(channel.sent.size(), 1u);
  EXPECT_EQ(std::get<TimelineReceipt>(channel.sent[0]).number, 4u);
  EXPECT_TRUE(timeline.Handle(1, TimelineChunk{4, true, ""}).ok());
  EXPECT_FALSE(timeline.Handle(1, TimelineReceipt{0}).ok());
  timeline.PeerEnded(1, false, {});
  EXPECT_TRUE(timeline.Handle(1, TimelineChunk{4, false, ""}).ok());
  EXPECT_EQ(channel.sent.size(), 1u);
}

TEST(timeline_waits_for_the_last_chunk_of_each_rank_that_was_there) {
  const TempDirectory directory;
  for (const bool was_there : {true, false}) {
    KeptMessages channel;
    channel.to = 1;
    CommCounters counters;
    Timeline timeline(PairOf(0), &channel, &counters);
    if (!was_there) timeline.PeerEnded(1, false, {});
    auto file = TimelineFile::Open("HVD_TIMELINE", directory.file("x.json"),
                                   PairOf(0), 0);
    ASSERT_TRUE(file.ok());
    timeline.Start(std::move(file.value()), false, {});
    int stopped = 0;
    timeline.Stop([&stopped] { ++stopped; }, {});
    timeline.Look({});
    EXPECT_EQ(stopped, was_there ? 0 : 1);
    if (!was_there) continue;
    // It was sent before the end, by another way.
    timeline.PeerEnded(1, false, {});
    timeline.Look({});
    EXPECT_EQ(stopped, 0);
    EXPECT_TRUE(timeline.Handle(1, TimelineChunk{1, true, ""}).ok());
    timeline.Look({});
    EXPECT_EQ(stopped, 1);
  }
}

TEST(timeline_that_begins_ends_the_one_before) {
  const TempDirectory directory;
  KeptMessages channel;
  channel.to = 1;
  CommCounters counters;
  Timeline timeline(PairOf(0), &channel, &counters);
  int stopped = 0;
  for (const char* name : {"one", "two"}) {
    auto file =
        TimelineFile::Open("HVD_TIMELINE", directory.file(name), PairOf(0), 0);
    ASSERT_TRUE(file.ok());
    timeline.Start(std::move(file.value()), false, {});
    EXPECT_EQ(stopped, name == std::string("one") ? 0 : 1);
    timeline.Stop([&stopped] { ++stopped; }, {});
  }
  // What is left of the first one belongs to no file, and ends none.
  EXPECT_TRUE(timeline.Handle(1, TimelineChunk{1, true, ""}).ok());
  timeline.Look({});
  EXPECT_EQ(stopped, 1);
  EXPECT_TRUE(timeline.Handle(1, TimelineChunk{2, true, ""}).ok());
  timeline.Look({});
  EXPECT_EQ(stopped, 2);
}

TEST(timeline_of_a_rank_sends_the_last_of_one_before_another_begins) {
  KeptMessages channel;
  CommCounters counters;
  Timeline timeline(PairOf(1), &channel, &counters);
  const auto number_of = [&](size_t i) {
    const auto& chunk = std::get<TimelineChunk>(channel.sent.at(i));
    return std::pair(chunk.number, chunk.is_last);
  };
  EXPECT_TRUE(timeline.Handle(0, TimelineControl{7, true, true}, {}).ok());
  EXPECT_TRUE(timeline.Handle(0, TimelineControl{7, false, true}, {}).ok());
  EXPECT_TRUE(timeline.Handle(0, TimelineControl{8, true, true}, {}).ok());
  ASSERT_EQ(channel.sent.size(), 1u);
  EXPECT_TRUE(number_of(0) == std::pair(uint64_t{7}, true));
  EXPECT_FALSE(timeline.is_stopping());
  EXPECT_TRUE(timeline.trace()->on());
}

// The process may end at any moment.
TEST(timeline_of_a_rank_sends_what_it_has_when_a_peer_ends) {
  KeptMessages channel;
  CommCounters counters;
  Timeline timeline(PairOf(1), &channel, &counters);
  const Timeline::Time now{std::chrono::seconds(1)};
  EXPECT_TRUE(timeline.Handle(0, TimelineControl{7, true, true}, now).ok());
  timeline.trace()->Cycle();
  timeline.Look(now);
  EXPECT_TRUE(channel.sent.empty());
  timeline.PeerEnded(0, true, now);
  timeline.Look(now);
  EXPECT_EQ(channel.sent.size(), 1u);
}

TEST(timeline_finds_the_clocks_of_other_hosts_anew) {
  const TempDirectory directory;
  KeptMessages channel;
  channel.to = 1;
  Topology topology = PairOf(0);
  topology.host_of = {0, 1};
  CommCounters counters;
  Timeline timeline(topology, &channel, &counters);
  for (const int way_ns : {1000, 1000000}) {
    const std::string path = directory.file(std::to_string(way_ns));
    auto file = TimelineFile::Open("HVD_TIMELINE", path, topology, 0);
    ASSERT_TRUE(file.ok());
    const std::shared_ptr<TimelineFile> kept = file.value();
    timeline.Start(std::move(file.value()), false, {});
    for (int i = 0; i < 5; ++i) {
      const int64_t asked_ns = SteadyNow_ns() - way_ns;
      timeline.HandleAnswer(1, Beat{false, false, asked_ns, asked_ns + 1});
    }
    timeline.Stop([] {}, {});
    EXPECT_TRUE(
        timeline.Handle(1, TimelineChunk{way_ns == 1000 ? 1u : 2u, true, ""})
            .ok());
    timeline.Look({});
    kept->Close(std::chrono::minutes(10));  // its thread's turn may come late
    EXPECT_NE(TextOf(path).find("hvd_clock"), std::string::npos);
  }
}

}  // namespace
}  // namespace hvd
