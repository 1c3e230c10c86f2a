// SPDX-License-Identifier: Apache-2.0
// EndRelay: who hears of an end, with how many messages, and who is gone.
#include "core/end_relay.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <random>
#include <vector>

#include "harness.h"

namespace hvd {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// `size` ranks, with so many on each host.
HostMap Hosts(int size, int ranks_a_host) {
  std::vector<int> keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(rank / ranks_a_host);
  return MakeHostMap(keys);
}

// A job of relays. A message takes 20 to 200 microseconds. A rank that has left
// and is not busy has gone. What reaches it after that is lost.
class Job {
 public:
  explicit Job(int size) : Job(OneHost(size)) {}
  explicit Job(const HostMap& hosts, unsigned seed = 1)
      : random_(seed),
        inbox_(hosts.host.size()),
        left_(hosts.host.size()),
        gone_(hosts.host.size()),
        frozen_(hosts.host.size()),
        sent_(hosts.host.size()) {
    const size_t size = hosts.host.size();
    for (size_t rank = 0; rank < size; ++rank) {
      relays_.emplace_back(static_cast<int>(rank), hosts);
    }
    heard_.assign(size, std::vector<int>(size));
    first_heard_.assign(size, -1);
  }

  void LeaveAt(int rank, microseconds at, bool at_once = false) {
    leaves_.push_back({rank, EndRelay::Clock::time_point(at), at_once});
  }
  // `rank` leaves because `of` has, when it has heard of it.
  void LeaveAfter(int rank, int of) {
    leaves_.push_back({rank, EndRelay::Clock::time_point(), false, of});
  }
  void Freeze(int rank) { frozen_[rank] = true; }

  void Run(microseconds for_so_long) {
    for (const auto end = now_ + for_so_long; now_ < end;
         now_ += microseconds(20)) {
      for (size_t rank = 0; rank < relays_.size(); ++rank) Pass(rank);
    }
  }

  int64_t messages() const {
    return std::accumulate(sent_.begin(), sent_.end(), int64_t{0});
  }
  int64_t sent(int rank) const { return sent_[rank]; }
  // By the rank that sends most.
  int64_t most_sent() const {
    return *std::max_element(sent_.begin(), sent_.end());
  }
  bool heard(int rank, int of) const { return heard_[rank][of] == 1; }
  // The rank of whose end `rank` has heard first. -1: of none.
  int first_heard(int rank) const { return first_heard_[rank]; }
  // Between its leave and its end. Negative: it has not gone.
  microseconds TookToLeave(int rank) const {
    return std::chrono::duration_cast<microseconds>(gone_[rank] - left_[rank]);
  }
  // How many ranks that are there do not know of an end.
  int Unheard() const {
    int unheard = 0;
    for (const auto& leave : leaves_) {
      for (size_t rank = 0; rank < relays_.size(); ++rank) {
        const bool is_there = gone_[rank] == Time() && !frozen_[rank];
        if (is_there && static_cast<int>(rank) != leave.rank) {
          unheard += heard_[rank][leave.rank] == 0;
        }
      }
    }
    return unheard;
  }

 private:
  using Time = EndRelay::Clock::time_point;
  struct Leaving {
    int rank;
    Time at;
    bool at_once;
    int after = -1;
  };
  struct Sent {
    Time at;
    int from;
    SharedBytes bytes;
  };

  void Pass(int rank) {
    if (frozen_[rank] || gone_[rank] != Time()) return;
    EndRelay& relay = relays_[rank];
    for (const Leaving& leave : leaves_) {
      if (leave.rank != rank || leave.at > now_ || left_[rank] != Time()) {
        continue;
      }
      if (leave.after >= 0 && !heard(rank, leave.after)) continue;
      left_[rank] = now_;
      PeerEndMessage end;
      end.rank = rank;
      end.failed = leave.at_once;
      relay.Leave(end, leave.at_once, now_);
    }
    auto& inbox = inbox_[rank];
    while (!inbox.empty() && inbox.front().at <= now_) {
      const Sent sent = std::move(inbox.front());
      inbox.pop_front();
      auto envelope = Decode(*sent.bytes);
      ASSERT_TRUE(envelope.ok());
      Message& message = envelope.value().message;
      if (auto* told = std::get_if<HostTold>(&message)) {
        relay.Handle(sent.from, *told);
        continue;
      }
      auto& ends = std::get<PeerEnds>(message);
      for (const auto& news : relay.Handle(sent.from, std::move(ends), now_)) {
        ++heard_[rank][news.rank];
        if (first_heard_[rank] < 0) first_heard_[rank] = news.rank;
      }
    }
    for (const EndRelay::Outgoing& message : relay.Take(now_)) {
      for (const int to : message.ranks) {
        const Time at = now_ + microseconds(20 + random_() % 180);
        // In order, as a channel keeps it.
        auto& queue = inbox_[to];
        queue.push_back({queue.empty() ? at : std::max(at, queue.back().at),
                         rank, message.bytes});
        ++sent_[rank];
      }
    }
    if (left_[rank] != Time() && !relay.busy(now_)) gone_[rank] = now_;
  }

  std::mt19937 random_;  // how long messages take
  std::vector<EndRelay> relays_;
  std::vector<std::deque<Sent>> inbox_;
  std::vector<std::vector<int>> heard_;
  std::vector<int> first_heard_;
  std::vector<Time> left_, gone_;
  std::vector<bool> frozen_;
  std::vector<Leaving> leaves_;
  Time now_ = Time(microseconds(1));
  std::vector<int64_t> sent_;
};

TEST(end_relay_one_end_reaches_every_other_rank_once) {
  for (int size : {1, 2, 3, 8}) {
    for (int leaver = 0; leaver < size; ++leaver) {
      Job job(size);
      job.LeaveAt(leaver, milliseconds(1));
      job.Run(milliseconds(100));
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_EQ(job.heard(rank, leaver), rank != leaver);
      }
      EXPECT_TRUE(job.TookToLeave(leaver) >= microseconds(0));
      EXPECT_TRUE(job.messages() <= size);
      // Only the lowest rank waits for others.
      EXPECT_TRUE(job.TookToLeave(leaver) <=
                  (leaver == 0 ? milliseconds(51) : milliseconds(1)));
    }
  }
}

TEST(end_relay_ranks_that_leave_one_by_one) {
  for (const bool upwards : {true, false}) {
    Job job(16);
    for (int i = 0; i < 15; ++i) {
      job.LeaveAt(upwards ? i : 15 - i, milliseconds(100 * (i + 1)));
    }
    job.Run(milliseconds(2000));
    EXPECT_EQ(job.Unheard(), 0);
    EXPECT_TRUE(job.messages() <= 15 * 17);
  }
}

// Too long where each step costs ten times as much.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
void Leave999Of1000(const HostMap& hosts, milliseconds limit) {
  for (const int spread_us : {100, 5000, 30000}) {
    Job job(hosts);
    std::mt19937 random(7);
    for (int rank = 0; rank < 999; ++rank) {
      job.LeaveAt(rank, microseconds(1 + random() % spread_us));
    }
    job.Run(milliseconds(500));
    EXPECT_EQ(job.Unheard(), 0);
    // A million, if each told each.
    EXPECT_TRUE(job.messages() <= 20000);
    for (int rank = 0; rank < 999; ++rank) {
      EXPECT_TRUE(job.TookToLeave(rank) >= microseconds(0));
      EXPECT_TRUE(job.TookToLeave(rank) <= limit);
    }
  }
}

TEST(end_relay_1000_ranks_that_leave_at_once_send_few_messages) {
  Leave999Of1000(OneHost(1000), milliseconds(100));
}

TEST(end_relay_over_hosts_1000_ranks_leave_at_once) {
  // A gatherer that has just gone costs 100 ms.
  Leave999Of1000(Hosts(1000, 8), milliseconds(200));
}
#endif

TEST(end_relay_a_relay_that_is_frozen_is_passed_by) {
  Job job(8);
  job.Freeze(0);
  for (int rank : {3, 5}) job.LeaveAt(rank, milliseconds(rank));
  job.Run(milliseconds(1000));
  EXPECT_EQ(job.Unheard(), 0);
  EXPECT_TRUE(job.TookToLeave(3) >= microseconds(0));
  EXPECT_TRUE(job.TookToLeave(3) <= milliseconds(700));
}

TEST(end_relay_a_failure_is_told_at_once) {
  Job job(8);
  job.Freeze(0);
  job.LeaveAt(3, milliseconds(1), true);
  job.Run(milliseconds(2));
  EXPECT_EQ(job.Unheard(), 0);
  EXPECT_EQ(job.messages(), 7);
}

TEST(end_relay_a_rank_that_was_given_up_is_not_asked) {
  const EndRelay::Clock::time_point now{milliseconds(1)};
  EndRelay relay(2, OneHost(4));
  PeerEndMessage end;
  end.rank = 3;
  end.failed = end.gave_up = true;
  end.cause_rank = 0;
  const PeerEnds ends{PassOn::kToNobody, 0, {end}};
  EXPECT_EQ(relay.Handle(3, ends, now).size(), 1u);
  EXPECT_EQ(relay.Handle(3, ends, now).size(), 0u);
  PeerEndMessage own;
  own.rank = 2;
  relay.Leave(own, false, now);
  auto messages = relay.Take(now);
  ASSERT_EQ(messages.size(), 1u);
  // Rank 1 alone is left, and those that are gone may still listen.
  EXPECT_TRUE((messages[0].ranks == std::vector<int>{0, 1, 3}));
  EXPECT_FALSE(relay.busy(now));
}

TEST(end_relay_over_hosts_one_end_reaches_every_other_rank_once) {
  for (const int ranks_a_host : {1, 2, 3, 8}) {
    for (int leaver = 0; leaver < 8; ++leaver) {
      for (const bool at_once : {false, true}) {
        Job job(Hosts(8, ranks_a_host));
        job.LeaveAt(leaver, milliseconds(1), at_once);
        job.Run(milliseconds(100));
        for (int rank = 0; rank < 8; ++rank) {
          EXPECT_EQ(job.heard(rank, leaver), rank != leaver);
        }
        EXPECT_TRUE(job.TookToLeave(leaver) >= microseconds(0));
      }
    }
  }
}

TEST(end_relay_over_hosts_nobody_sends_more_than_hosts_and_neighbours) {
  // 7 neighbours and 127 gatherers, which tell 7 neighbours each and answer.
  const int64_t most = 7 + 127, all = most + 127 * (7 + 1);
  for (const bool at_once : {false, true}) {
    Job job(Hosts(1024, 8));
    job.LeaveAt(500, milliseconds(1), at_once);
    job.Run(milliseconds(50));
    EXPECT_EQ(job.Unheard(), 0);
    EXPECT_EQ(job.most_sent(), most);
    EXPECT_EQ(job.sent(500), at_once ? most : 1);
    EXPECT_EQ(job.messages(), at_once ? all : all + 1);
  }
}

TEST(end_relay_over_hosts_ranks_that_leave_one_by_one) {
  for (const bool upwards : {true, false}) {
    Job job(Hosts(16, 4));
    for (int i = 0; i < 15; ++i) {
      job.LeaveAt(upwards ? i : 15 - i, milliseconds(300 * (i + 1)));
    }
    job.Run(milliseconds(5000));
    EXPECT_EQ(job.Unheard(), 0);
  }
}

// Two messages of two senders may come in any order.
TEST(end_relay_over_hosts_who_left_first_is_heard_of_first) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    for (const int ranks_a_host : {1, 2, 3}) {
      for (const int leaver : {0, 4}) {
        Job job(Hosts(6, ranks_a_host), seed);
        job.LeaveAt(leaver, milliseconds(1));
        for (int rank = 0; rank < 5; ++rank) {
          if (rank != leaver) job.LeaveAfter(rank, leaver);
        }
        job.Run(milliseconds(250));
        EXPECT_EQ(job.Unheard(), 0);
        for (int rank = 0; rank < 6; ++rank) {
          if (rank != leaver) EXPECT_EQ(job.first_heard(rank), leaver);
        }
      }
    }
  }
}

TEST(end_relay_a_gatherer_that_is_frozen_is_passed_by) {
  for (const bool at_once : {false, true}) {
    Job job(Hosts(16, 4));
    job.Freeze(4);
    job.LeaveAt(13, milliseconds(1), at_once);
    job.Run(milliseconds(5));
    EXPECT_EQ(job.Unheard(), 3);  // the neighbours of rank 4
    job.Run(milliseconds(105));
    EXPECT_EQ(job.Unheard(), 0);
    EXPECT_TRUE(job.TookToLeave(13) >= microseconds(0));
    EXPECT_TRUE(job.TookToLeave(13) <= milliseconds(102));
  }
}

TEST(end_relay_a_gatherer_that_leaves_is_passed_by) {
  for (int gatherer_us = 500; gatherer_us < 1600;
       gatherer_us += test::Times(20, 100)) {
    for (const bool at_once : {false, true}) {
      Job job(Hosts(16, 4));
      job.LeaveAt(4, microseconds(gatherer_us));
      job.LeaveAt(13, milliseconds(1), at_once);
      job.Run(milliseconds(250));
      EXPECT_EQ(job.Unheard(), 0);
    }
  }
}

TEST(end_relay_who_gives_a_gatherer_up_does_not_wait_for_it) {
  const EndRelay::Clock::time_point now{milliseconds(1)};
  EndRelay relay(0, Hosts(6, 3));
  PeerEndMessage own;
  own.rank = 0;
  own.failed = own.gave_up = true;
  own.cause_rank = 3;
  relay.Leave(own, true, now);
  const auto messages = relay.Take(now);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_TRUE((messages[0].ranks == std::vector<int>{1, 2}));
  EXPECT_TRUE((messages[1].ranks == std::vector<int>{4}));
  EXPECT_FALSE(relay.hosts_are_told());
  relay.Handle(4, HostTold{7});  // of nothing that was asked
  EXPECT_FALSE(relay.hosts_are_told());
  relay.Handle(4, HostTold{1});
  EXPECT_TRUE(relay.hosts_are_told());
}

TEST(end_relay_that_has_left_stays_for_a_while_after_each_end) {
  const EndRelay::Clock::time_point now{milliseconds(1)};
  EndRelay relay(0, OneHost(4));
  PeerEndMessage end;
  end.rank = 0;
  relay.Leave(end, false, now);
  EXPECT_EQ(relay.Take(now).size(), 1u);
  end.rank = 1;
  const auto later = now + milliseconds(40);
  EXPECT_EQ(relay.Handle(1, {PassOn::kToJob, 0, {end}}, later).size(), 1u);
  EXPECT_EQ(relay.Take(later).size(), 1u);
  EXPECT_TRUE(relay.busy(now + milliseconds(89)));
  EXPECT_FALSE(relay.busy(now + milliseconds(90)));
}

}  // namespace
}  // namespace hvd
