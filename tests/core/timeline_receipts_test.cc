// SPDX-License-Identifier: Apache-2.0
// Timeline on one rank: what it sends, and what it does without receipts.
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "core/timeline.h"
#include "core/trace_events.h"
#include "harness.h"

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

}  // namespace
}  // namespace hvd
