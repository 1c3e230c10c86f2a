// SPDX-License-Identifier: Apache-2.0
// Heartbeats: who asks whom, who is found silent, and who takes over. The ranks
// are in one thread. The test carries messages by hand and makes up the time.
#include "core/heartbeats.h"

#include <set>
#include <utility>

#include "harness.h"

namespace hvd {
namespace {

using Clock = Heartbeats::Clock;
using std::chrono::milliseconds;

class World {
 public:
  explicit World(int size, double limit_s = 60) {
    for (int rank = 0; rank < size; ++rank) {
      ranks_.emplace_back(rank, size, limit_s, now_);
    }
  }

  Heartbeats& at(int rank) { return ranks_[rank]; }
  Clock::time_point now() const { return now_; }
  void Freeze(int rank) { frozen_.insert(rank); }
  // What has come for it meanwhile is read.
  void Thaw(int rank) {
    frozen_.erase(rank);
    auto unread = std::exchange(unread_, {});
    for (const auto& [from, to] : unread) Answer(from, to);
  }

  // Time passes, and everybody who runs does its part, `step` by `step`.
  void Pass(milliseconds time, milliseconds step = milliseconds(250)) {
    for (milliseconds done{0}; done < time; done += step) {
      now_ += step;
      for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
        if (frozen_.count(rank) != 0) continue;
        for (const int peer : at(rank).Ask(now_)) {
          ++messages_;
          Answer(rank, peer);
        }
      }
    }
  }

  // The ranks that a rank finds silent, when it is the watch.
  std::set<int> SilentTo(int rank, double seconds) {
    std::set<int> silent;
    for (const Silence& silence : at(rank).Silences(now_)) {
      if (silence.silent_s >= seconds) silent.insert(silence.rank);
    }
    return silent;
  }
  int TakeMessages() { return std::exchange(messages_, 0); }

 private:
  void Answer(int from, int to) {
    if (frozen_.count(to) != 0) {
      unread_.emplace_back(from, to);
      return;
    }
    at(to).Heard(from, now_);
    if (frozen_.count(from) != 0) return;
    at(from).Heard(to, now_);
    at(from).Answered(to);
    ++messages_;
  }

  std::vector<Heartbeats> ranks_;
  std::set<int> frozen_;
  std::vector<std::pair<int, int>> unread_;
  Clock::time_point now_ = Clock::now();
  int messages_ = 0;
};

TEST(heartbeats_all_answer_with_two_messages_a_rank_and_second) {
  World world(5);
  world.Pass(milliseconds(3000));
  world.TakeMessages();
  world.Pass(milliseconds(100000));
  EXPECT_EQ(world.TakeMessages(), 100 * 2 * 4);
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(world.at(rank).watches(), rank == 0);
    EXPECT_TRUE(world.SilentTo(rank, 1).empty());
  }
}

TEST(heartbeats_a_frozen_rank_is_silent_and_asked_once) {
  World world(3);
  world.Pass(milliseconds(5000));
  world.Freeze(2);
  world.TakeMessages();
  world.Pass(milliseconds(60000));
  // A question was due within a second.
  EXPECT_TRUE(world.SilentTo(0, 59) == std::set<int>{2});
  EXPECT_TRUE(world.at(0).IsSilent(2, world.now()));
  EXPECT_FALSE(world.at(0).IsSilent(1, world.now()));
  EXPECT_EQ(world.TakeMessages(), 60 * 2 + 1);
  world.Thaw(2);
  EXPECT_TRUE(world.at(0).has_answered(2));
  EXPECT_TRUE(world.SilentTo(0, 0).empty());
}

TEST(heartbeats_the_next_rank_takes_over_from_frozen_ones) {
  World world(4);
  world.Pass(milliseconds(5000));
  world.Freeze(0);
  world.Pass(milliseconds(60000));
  EXPECT_TRUE(world.at(1).watches());
  EXPECT_FALSE(world.at(2).watches());
  // It began to ask when it had taken over.
  EXPECT_TRUE(world.SilentTo(1, 55) == std::set<int>{0});
  world.Freeze(1);
  world.Pass(milliseconds(60000));
  EXPECT_TRUE(world.at(2).watches());
  EXPECT_TRUE((world.SilentTo(2, 50) == std::set<int>{0, 1}));
  EXPECT_FALSE(world.at(3).watches());
}

TEST(heartbeats_a_watch_that_goes_on_takes_its_place_again) {
  World world(3);
  world.Freeze(0);
  world.Pass(milliseconds(20000));
  EXPECT_TRUE(world.at(1).watches());
  world.Thaw(0);
  world.Pass(milliseconds(250));
  EXPECT_FALSE(world.at(1).watches());
  EXPECT_TRUE(world.SilentTo(0, 1).empty());  // it was away, not the others
  world.Pass(milliseconds(60000));
  EXPECT_TRUE(world.at(0).watches());
  EXPECT_FALSE(world.at(1).watches());
  EXPECT_TRUE(world.SilentTo(0, 1).empty());
}

TEST(heartbeats_a_rank_that_takes_over_gives_the_others_time) {
  World world(3);
  world.Pass(milliseconds(100000));
  world.Freeze(0);
  for (int i = 0; i < 40; ++i) {
    world.Pass(milliseconds(250));
    // Rank 2 has never had a reason to write to rank 1.
    EXPECT_EQ(world.SilentTo(1, 1).count(2), 0u);
  }
}

TEST(heartbeats_who_has_left_is_not_missed) {
  World world(3);
  world.Pass(milliseconds(2000));
  for (int rank : {1, 2}) world.at(rank).Ended(0);
  world.Freeze(0);
  world.Pass(milliseconds(500));
  EXPECT_TRUE(world.at(1).watches());  // at once
  world.Pass(milliseconds(100000));
  EXPECT_TRUE(world.SilentTo(1, 0).empty());
  world.at(1).Ended(2);
  world.Freeze(2);
  world.Pass(milliseconds(100000));
  EXPECT_TRUE(world.SilentTo(1, 0).empty());
}

TEST(heartbeats_come_often_enough_for_a_short_limit) {
  World world(2, 0.8);
  EXPECT_TRUE(*world.at(0).interval() == milliseconds(100));
  world.Pass(milliseconds(500), milliseconds(10));
  world.Freeze(1);
  world.Pass(milliseconds(900), milliseconds(10));
  EXPECT_TRUE(world.SilentTo(0, 0.8) == std::set<int>{1});
}

TEST(heartbeats_without_a_limit_nobody_asks) {
  World world(3, 0);
  EXPECT_FALSE(world.at(0).interval().has_value());
  world.Pass(milliseconds(100000));
  EXPECT_EQ(world.TakeMessages(), 0);
  World solo(1);
  EXPECT_FALSE(solo.at(0).interval().has_value());
}

TEST(heartbeats_count_silence_from_whatever_was_heard_last) {
  const Heartbeats::Clock::time_point begin{};
  const auto at = [&](int time_s) {
    return begin + std::chrono::seconds(time_s);
  };
  Heartbeats watch(0, 2, 20, begin);
  EXPECT_EQ(watch.Ask(at(1)).size(), 1u);
  watch.Heard(1, at(5));  // something else than the answer
  const auto silences = watch.Silences(at(6));
  ASSERT_EQ(silences.size(), 1u);
  EXPECT_NEAR(silences[0].silent_s, 1, 1e-9);
}

}  // namespace
}  // namespace hvd
