// SPDX-License-Identifier: Apache-2.0
// Ends: which end counts, in what words, and when all have been told.
#include "core/ends.h"

#include <future>
#include <string>
#include <utility>
#include <vector>

#include "harness.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

// Keeps what is sent.
class KeepingChannel : public Channel {
 public:
  void Send(int peer, SharedBytes message) override {
    Result<Envelope> envelope = Decode(*message);
    ASSERT_TRUE(envelope.ok());
    sent.emplace_back(peer, std::get<PeerEnds>(envelope.value().message));
  }
  bool Receive(int*, std::string*) override { return false; }
  bool Flush() override { return false; }
  Status status() const override { return Status::Ok(); }

  std::vector<std::pair<int, PeerEnds>> sent;
};

// Rank 0 of four. It has a host of its own, and the others have one.
struct Rank {
  Rank() : ends(FourRanks(), &channel) {}
  static Topology FourRanks() {
    Topology topology;
    topology.size = 4;
    topology.host_of = {0, 1, 1, 1};
    topology.hosts = {"near", "far", "far", "far"};
    return topology;
  }
  bool is_announced() {
    return announced.wait_for(milliseconds(0)) == std::future_status::ready;
  }

  KeepingChannel channel;
  Ends ends;
  Ends::Clock::time_point now{milliseconds(1)};
  std::future<void> announced = ends.failure_announced();
};

PeerEndMessage EndOf(int rank, bool failed, const std::string& text) {
  PeerEndMessage end;
  end.rank = rank;
  end.failed = failed;
  end.text = text;
  return end;
}

TEST(a_failure_counts_more_than_a_rank_that_has_left_or_starts_again) {
  Rank rank;
  EXPECT_FALSE(rank.ends.first_peer().has_value());
  EXPECT_EQ(rank.ends.restarting_peer(), -1);
  PeerEndMessage restarts = EndOf(1, false, "to start again");
  restarts.restarts = true;
  Status why = rank.ends.Note(restarts, rank.now);
  EXPECT_EQ(why.message(), "rank 1 (far) has left: to start again");
  ASSERT_TRUE(why.cause() != nullptr);
  EXPECT_EQ(why.cause()->kind, CauseKind::kRankRestarts);
  EXPECT_EQ(rank.ends.first_peer()->rank, 1);
  EXPECT_EQ(rank.ends.restarting_peer(), 1);

  why = rank.ends.Note(EndOf(2, false, "done"), rank.now);
  EXPECT_EQ(why.message(), "rank 2 (far) has left: done");
  EXPECT_EQ(rank.ends.first_peer()->rank, 2);
  EXPECT_FALSE(rank.ends.is_job_ending());

  why = rank.ends.Note(EndOf(3, true, "no memory"), rank.now);
  EXPECT_EQ(why.message(), "rank 3 (far) failed: no memory");
  EXPECT_EQ(rank.ends.first_peer()->rank, 3);
  EXPECT_TRUE(rank.ends.is_job_ending());
  EXPECT_FALSE(rank.ends.is_ending());

  // The first one of a kind stays. What fails says the last one.
  why = rank.ends.Note(EndOf(1, true, "no disk"), rank.now);
  EXPECT_EQ(why.message(), rank.ends.last_why().message());
  EXPECT_EQ(why.message(), "rank 1 (far) failed: no disk");
  EXPECT_EQ(rank.ends.first_peer()->rank, 3);
  EXPECT_EQ(rank.ends.restarting_peer(), 1);
  EXPECT_EQ(rank.ends.of_peers().size(), 4u);
}

TEST(an_end_names_its_cause) {
  Rank rank;
  PeerEndMessage end = EndOf(2, true, "a peer was lost");
  end.cause_rank = 1;
  end.cause_text = "no memory";
  const Status why = rank.ends.Note(end, rank.now);
  EXPECT_EQ(why.message(), "rank 1 (far) failed: no memory");
  EXPECT_EQ(rank.ends.first_peer()->rank, 1);
  // This rank tells of it too.
  const auto [own, own_why] =
      rank.ends.Begin(true, "a collective failed", false);
  EXPECT_EQ(own_why.message(), "this rank failed: a collective failed");
  EXPECT_EQ(own.text, "a collective failed");
  EXPECT_EQ(own.cause_rank, 1);
  EXPECT_EQ(own.cause_text, "no memory");
}

TEST(who_gives_up_a_rank_fails_with_the_words_of_that) {
  Rank rank;
  PeerEndMessage end = EndOf(0, true, "");
  end.gave_up = true;
  end.cause_rank = 1;
  end.cause_text = "it did not answer";
  (void)rank.ends.Note(end, rank.now);
  const auto [own, why] = rank.ends.Begin(true, "it did not answer", false);
  EXPECT_EQ(why.message(), "rank 1 (far) failed: it did not answer");
  ASSERT_TRUE(why.cause() != nullptr);
  EXPECT_EQ(why.cause()->kind, CauseKind::kRankGivenUp);
  EXPECT_TRUE(own.gave_up);
}

TEST(what_waits_for_a_log_waits_a_second_after_the_last_end) {
  Rank rank;
  EXPECT_FALSE(rank.ends.TakeOverdue(rank.now));
  (void)rank.ends.Note(EndOf(1, false, "done"), rank.now);
  (void)rank.ends.Note(EndOf(2, false, "done"), rank.now + milliseconds(500));
  EXPECT_FALSE(rank.ends.TakeOverdue(rank.now + milliseconds(1499)));
  EXPECT_TRUE(rank.ends.TakeOverdue(rank.now + milliseconds(1500)));
  EXPECT_FALSE(rank.ends.TakeOverdue(rank.now + milliseconds(3000)));
}

std::string TextOf(Ends* ends, bool failed) {
  return ends->Begin(failed, "the end", false).first.text;
}

TEST(a_rank_that_leaves_says_which_loop_has_ended_before) {
  Rank rank;
  rank.ends.EndScope("fit/1/", "no data");
  rank.ends.Submitted("other");
  EXPECT_EQ(TextOf(&rank.ends, false), "the end. Earlier: no data");
  // A failure has words of its own.
  EXPECT_EQ(TextOf(&rank.ends, true), "the end");
  rank.ends.EndScope("fit/2/", "");
  EXPECT_EQ(TextOf(&rank.ends, false), "the end. Earlier: no data");
  rank.ends.EndScope("fit/1/", "");
  EXPECT_EQ(TextOf(&rank.ends, false), "the end");
}

TEST(a_loop_that_goes_on_has_not_ended) {
  Rank rank;
  rank.ends.EndScope("fit/1/", "no data");
  rank.ends.Submitted("fit/1/gradient");
  EXPECT_EQ(TextOf(&rank.ends, false), "the end");
}

TEST(a_failure_is_announced_when_each_host_has_been_told) {
  Rank rank;
  auto [own, why] = rank.ends.Begin(true, "no memory", false);
  EXPECT_EQ(why.message(), "this rank failed: no memory");
  EXPECT_TRUE(rank.ends.is_ending());
  EXPECT_FALSE(rank.ends.Send(rank.now));
  rank.ends.Tell(std::move(own), rank.now);
  EXPECT_TRUE(rank.ends.Send(rank.now));
  ASSERT_EQ(rank.channel.sent.size(), 1u);
  const auto& [peer, told] = rank.channel.sent[0];
  EXPECT_EQ(peer, 1);
  EXPECT_EQ(told.ends[0].text, "no memory");
  EXPECT_TRUE(rank.ends.busy(rank.now));
  EXPECT_FALSE(rank.is_announced());
  rank.ends.Handle(1, HostTold{told.round});
  EXPECT_FALSE(rank.ends.Send(rank.now));
  EXPECT_TRUE(rank.is_announced());
}

TEST(a_rank_that_leaves_announces_no_failure) {
  Rank rank;
  rank.ends.Tell(rank.ends.Begin(false, "done", false).first, rank.now);
  EXPECT_TRUE(rank.ends.Send(rank.now));
  rank.ends.Handle(1, HostTold{rank.channel.sent[0].second.round});
  rank.ends.Send(rank.now);
  EXPECT_FALSE(rank.is_announced());
}

TEST(ends_that_come_twice_are_news_once) {
  Rank rank;
  const PeerEnds ends{PassOn::kToNobody, 0, {EndOf(2, true, "no memory")}};
  const auto first = rank.ends.Handle(2, ends, rank.now);
  EXPECT_TRUE(first.ok() && first.value().size() == 1);
  const auto second = rank.ends.Handle(1, ends, rank.now);
  EXPECT_TRUE(second.ok() && second.value().empty());
  for (const bool of_cause : {false, true}) {
    PeerEndMessage end = EndOf(of_cause ? 3 : 4, true, "no memory");
    if (of_cause) end.cause_rank = 4;
    const auto nonsense =
        rank.ends.Handle(1, {PassOn::kToNobody, 0, {end}}, rank.now);
    EXPECT_EQ(nonsense.status().message(), "it tells of the end of rank 4.");
  }
}

}  // namespace
}  // namespace hvd
