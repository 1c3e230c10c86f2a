// SPDX-License-Identifier: Apache-2.0
// PeerWatch: what it asks and answers, and whom it says to give up.
#include "core/peer_watch.h"

#include <string>
#include <utility>
#include <vector>

#include "core/log.h"
#include "core/peer_names.h"
#include "harness.h"

namespace hvd {
namespace {

// Keeps what is sent, such as "1 asks". Nothing else is called.
class KeepingBackend : public Backend, public Channel {
 public:
  KeepingBackend() {
    topology_.size = 3;
    topology_.hosts = {"near", "near", "far"};
  }
  const Topology& topology() const override { return topology_; }
  Channel& channel() override { return *this; }
  Result<std::vector<std::string>> Exchange(const std::string&) override {
    return Internal("not here");
  }
  Result<std::unique_ptr<Transport>> NewTransport(int,
                                                  const ProcessSet&) override {
    return Internal("not here");
  }
  std::shared_ptr<Doorbell> doorbell() override { return nullptr; }
  bool arrivals_ring() const override { return true; }
  void Abort(int) override {}

  void Send(int peer, SharedBytes message) override {
    const Result<Envelope> envelope = Decode(*message);
    ASSERT_TRUE(envelope.ok());
    const Beat& beat = std::get<Beat>(envelope.value().message);
    sent_ += std::to_string(peer) + (beat.wants_stacks ? " stacks "
                                     : beat.asks       ? " asks "
                                                       : " answers ");
  }
  bool Receive(int*, std::string*) override { return false; }
  bool Flush() override { return false; }
  Status status() const override { return Status::Ok(); }

  std::string TakeSent() { return std::exchange(sent_, ""); }

 private:
  Topology topology_;
  std::string sent_;
};

// Rank 0 of three, which watches the others.
struct Watching {
  explicit Watching(double warning_s, double shutdown_s) {
    Options options = Options::Defaults();
    options.stall_warning_s = warning_s;
    options.stall_shutdown_s = shutdown_s;
    watch = std::make_unique<PeerWatch>(&backend, &backend.channel(), options,
                                        stacks, At(0));
  }
  static PeerWatch::Clock::time_point At(double time_s) {
    return PeerWatch::Clock::time_point{} +
           std::chrono::duration_cast<PeerWatch::Clock::duration>(
               std::chrono::duration<double>(time_s));
  }
  // Rank 1 answers whatever it is asked. Rank 2 never does.
  PeerWatch::Finding Look(double time_s) {
    watch->AskPeers(At(time_s));
    watch->Heard(1, At(time_s));
    watch->Handle(1, Beat{}, At(time_s));
    return watch->LookAtPeers(At(time_s), [this] {
      ++names_asked;
      return std::vector<std::string>{"x"};
    });
  }

  KeepingBackend backend;
  std::shared_ptr<StackRequests> stacks =
      std::make_shared<StackRequests>(std::chrono::duration<double>(60));
  std::unique_ptr<PeerWatch> watch;
  int names_asked = 0;
};

TEST(peer_names_have_the_host_where_it_is_known) {
  const PeerNames names({"near", "far"});
  EXPECT_EQ(names.Of(1), "rank 1 (far)");
  EXPECT_EQ(names.Of(std::vector<int>{0, 2}), "rank 0 (near), rank 2");
  EXPECT_EQ(names.Of(std::vector<int>{}), "");
}

TEST(peer_watch_answers_at_once) {
  Watching rank(0, 0);
  EXPECT_FALSE(rank.watch->question_interval().has_value());
  rank.watch->Handle(2, Beat{true, false}, Watching::At(1));
  EXPECT_EQ(rank.backend.TakeSent(), "2 answers ");
  rank.watch->Handle(2, Beat{false, true}, Watching::At(1));
  EXPECT_EQ(rank.backend.TakeSent(), "");
  EXPECT_FALSE(rank.stacks->idle());
}

TEST(peer_watch_warns_of_a_silent_rank_with_growing_gaps) {
  Watching rank(20, 0);
  std::vector<double> warned_s;
  for (double time_s = 1; time_s < 100; time_s += 0.5) {
    const PeerWatch::Finding finding = rank.Look(time_s);
    EXPECT_FALSE(finding.lost.has_value());
    if (finding.warned) warned_s.push_back(time_s);
  }
  EXPECT_EQ(rank.names_asked, static_cast<int>(warned_s.size()));
  ASSERT_EQ(warned_s.size(), 3u);
  const double gap_s = warned_s[1] - warned_s[0];
  EXPECT_NEAR(gap_s, 20, 1);
  EXPECT_NEAR(warned_s[2] - warned_s[1], 2 * gap_s, 1.5);
  // The silent rank is not asked for its stacks.
  rank.backend.TakeSent();
  rank.watch->AskForStacks(Watching::At(100), Watching::At(100));
  EXPECT_EQ(rank.backend.TakeSent(), "1 stacks ");
  EXPECT_FALSE(rank.stacks->idle());
}

TEST(peer_watch_gives_up_a_rank_that_stays_silent) {
  Watching rank(0, 20);
  double time_s = 1;
  PeerWatch::Finding finding;
  while (!finding.lost.has_value() && time_s < 60) {
    finding = rank.Look(time_s += 0.5);
  }
  ASSERT_TRUE(finding.lost.has_value());
  EXPECT_EQ(finding.lost->rank, 2);
  EXPECT_NEAR(time_s, 20, 2);
  EXPECT_NE(finding.lost->text.find("'x'"), std::string::npos);
  rank.watch->Ended(2);
  EXPECT_FALSE(rank.Look(time_s + 1).lost.has_value());
}

TEST(peer_watch_tells_what_a_leader_has_found_but_not_of_silent_ranks_again) {
  Watching rank(20, 40);
  for (double time_s = 1; time_s < 30; time_s += 0.5) rank.Look(time_s);
  Watched watched;
  watched.stalls.push_back({{2}, {"x"}, 25});
  EXPECT_FALSE(rank.watch->LookAtSet(watched, Watching::At(30)).warned);
  watched.stalls[0].missing = {1, 2};
  EXPECT_TRUE(rank.watch->LookAtSet(watched, Watching::At(30)).warned);
  // What rank 1 has said may be with rank 2.
  watched.stalls[0].reporters = {2, 2};
  EXPECT_FALSE(rank.watch->LookAtSet(watched, Watching::At(30)).warned);
  watched.lost = Stall{{1, 2}, {"x"}, 40};
  const auto finding = rank.watch->LookAtSet(watched, Watching::At(30));
  EXPECT_FALSE(finding.warned);
  ASSERT_TRUE(finding.lost.has_value());
  EXPECT_EQ(finding.lost->rank, 1);
  EXPECT_NE(finding.lost->text.find("rank 2 (far)"), std::string::npos);
}

TEST(peer_watch_that_looks_late_does_not_warn_again_at_once) {
  Watching rank(20, 0);
  rank.Look(1);
  EXPECT_TRUE(rank.Look(100).warned);
  EXPECT_FALSE(rank.Look(118).warned);
  EXPECT_TRUE(rank.Look(120).warned);
}

TEST(peer_watch_tells_once_that_a_rank_answers_again) {
  Watching rank(20, 0);
  rank.Look(1);
  EXPECT_TRUE(rank.Look(30).warned);
  std::vector<std::string> lines;
  SetLogSink(
      [&lines](LogLevel, const std::string& line) { lines.push_back(line); });
  for (double time_s = 31; time_s < 35; time_s += 0.5) {
    rank.watch->Heard(2, Watching::At(time_s));
    rank.watch->Handle(2, Beat{}, Watching::At(time_s));
    rank.Look(time_s);
  }
  EXPECT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("rank 2 (far) answers again."), std::string::npos);
  // It may fall silent again, and is told of as the first time.
  rank.Look(35);
  EXPECT_FALSE(rank.Look(54).warned);
  EXPECT_TRUE(rank.Look(55).warned);
  SetLogSink(nullptr);
}

}  // namespace
}  // namespace hvd
