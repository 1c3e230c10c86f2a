// SPDX-License-Identifier: Apache-2.0
// LaunchOrder: ranks of overlapping sets launch their batches in one order.
#include "transport/device/launch_order.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "harness.h"

namespace hvd {
namespace {

using Place = LaunchOrder::Place;

constexpr int kNoWindow = 1 << 20;

TEST(batches_of_one_set_go_in_their_order) {
  LaunchOrder order;
  const Place first = order.Begin(3), second = order.Begin(3);
  EXPECT_TRUE(first < second);
  order.Settle(second, second);
  EXPECT_FALSE(order.IsNext(second));  // the first may still come before it
  order.Settle(first, first);
  EXPECT_TRUE(order.IsNext(first));
  EXPECT_FALSE(order.IsNext(second));
  order.End(first);
  EXPECT_TRUE(order.IsNext(second));
  EXPECT_FALSE(order.empty());
  order.End(second);
  order.End(second);
  EXPECT_FALSE(order.IsNext(second));
  EXPECT_TRUE(order.empty());
}

TEST(a_batch_that_is_settled_later_may_go_behind) {
  LaunchOrder order;
  const Place mine = order.Begin(1), other = order.Begin(2);
  order.Settle(other, other);
  EXPECT_FALSE(order.IsNext(other));
  order.Settle(mine, mine + 5 * LaunchOrder::kSets);
  EXPECT_TRUE(order.IsNext(other));
  EXPECT_FALSE(order.IsNext(mine));
  // What begins now goes behind all that is known.
  EXPECT_TRUE(order.Begin(2) > mine + 5 * LaunchOrder::kSets);
}

TEST(a_batch_that_is_given_up_holds_nothing_up) {
  LaunchOrder order;
  const Place lost = order.Begin(1), other = order.Begin(2);
  order.Settle(other, other);
  order.End(lost);
  EXPECT_TRUE(order.IsNext(other));
  order.Settle(lost, lost);  // comes too late
  EXPECT_FALSE(order.IsNext(lost));
}

TEST(a_batch_that_goes_on_is_before_what_is_not_launched) {
  LaunchOrder order;
  const Place first = order.Begin(3), second = order.Begin(3),
              third = order.Begin(3);
  order.Settle(first, first);
  order.Settle(second, second);
  order.Launch(first);
  order.End(first);
  const Place again = order.BeginAgain(3);
  EXPECT_TRUE(first < again && again < second);
  // From here on the GPU has it.
  order.Launch(second);
  // The first one goes on, as a batch of this set and of another do.
  const Place later = order.BeginAgain(3), other = order.BeginAgain(1);
  EXPECT_TRUE(second < other && other < later && later < third);
  order.Settle(again, again);
  order.End(again);
  // What begins now goes behind all that is known.
  EXPECT_TRUE(order.Begin(0) > third);
}

// GPUs that run one batch at a time, which all ranks of its set must have
// begun: they would stand still if two had two batches in opposite order. Each
// batch is launched twice, and there is a time between.
class Gpus {
 public:
  // A rank tells its proposal for a batch when fewer than `window` batches of
  // its set are between it and the oldest one that has not ended.
  Gpus(std::vector<std::vector<int>> sets, int ranks, unsigned seed, int window)
      : sets_(std::move(sets)),
        window_(window),
        ranks_(static_cast<size_t>(ranks)),
        draw_(seed) {}

  // False: they stand still.
  bool Run(int batches_of_a_set) {
    int left = 0;
    for (const auto& set : sets_) {
      left += 2 * batches_of_a_set * static_cast<int>(set.size());
    }
    for (int idle = 0; left > 0 && idle < 100000; ++idle) {
      const auto r = static_cast<size_t>(Draw(static_cast<int>(ranks_.size())));
      const int set = Draw(static_cast<int>(sets_.size()));
      Begin(r, set, batches_of_a_set);
      BeginAgain(r, set);
      Tell(r, set);
      Settle(set);
      left -= Launch(r);
      Finish();
    }
    return left == 0;
  }

 private:
  // The set and the batch's number, with kAgain that of its second launch.
  using Batch = std::pair<int, int>;
  static constexpr int kAgain = 1000;
  struct Rank {
    LaunchOrder order;
    // By set: how many have begun, have gone on and have ended.
    std::map<int, int> begun, again, ended;
    std::map<int, int> may_go_on;
    std::map<Batch, Place> proposed;
    std::map<int, std::deque<Batch>> untold;  // by set
    Batch launching = {-1, -1};
    std::vector<Batch> queue;  // of the GPU
  };

  int Draw(int below) {
    return std::uniform_int_distribution<int>(0, below - 1)(draw_);
  }
  bool IsIn(size_t rank, int set) const {
    const std::vector<int>& ranks = sets_[static_cast<size_t>(set)];
    return std::count(ranks.begin(), ranks.end(), static_cast<int>(rank)) > 0;
  }

  void Begin(size_t r, int set, int most) {
    Rank& rank = ranks_[r];
    if (!IsIn(r, set) || rank.begun[set] == most) return;
    const Batch batch{set, rank.begun[set]++};
    rank.proposed[batch] = rank.order.Begin(set);
    rank.untold[set].push_back(batch);
  }

  void BeginAgain(size_t r, int set) {
    Rank& rank = ranks_[r];
    if (rank.again[set] == rank.may_go_on[set]) return;
    const Batch batch{set, kAgain + rank.again[set]++};
    rank.proposed[batch] = rank.order.BeginAgain(set);
    Propose(rank, batch);
  }

  void Tell(size_t r, int set) {
    Rank& rank = ranks_[r];
    std::deque<Batch>& untold = rank.untold[set];
    if (untold.empty() || untold[0].second >= rank.ended[set] + window_) return;
    Propose(rank, untold[0]);
    untold.pop_front();
  }

  void Propose(const Rank& rank, const Batch& batch) {
    const std::vector<int>& members = sets_[static_cast<size_t>(batch.first)];
    std::vector<Place>& proposals = proposals_[batch];
    proposals.push_back(rank.proposed.at(batch));
    if (proposals.size() < members.size()) return;
    // A rank hears of the result at some later time.
    for (const int member : members) news_.push_back({member, batch});
  }

  void Settle(int) {
    if (news_.empty()) return;
    const auto at = news_.begin() + Draw(static_cast<int>(news_.size()));
    const auto [member, batch] = *at;
    news_.erase(at);
    const std::vector<Place>& all = proposals_.at(batch);
    Rank& rank = ranks_[static_cast<size_t>(member)];
    rank.order.Settle(rank.proposed.at(batch),
                      *std::max_element(all.begin(), all.end()));
  }

  int Launch(size_t r) {
    Rank& rank = ranks_[r];
    for (const auto& [batch, proposed] : rank.proposed) {
      if (!rank.order.IsNext(proposed)) continue;
      if (rank.launching != batch) {
        // It takes some time.
        rank.order.Launch(proposed);
        rank.queue.push_back(batch);
        rank.launching = batch;
        return 0;
      }
      rank.order.End(proposed);
      rank.proposed.erase(batch);
      return 1;
    }
    return 0;
  }

  // A kernel ends when it is at the head of all its ranks' queues.
  void Finish() {
    for (size_t set = 0; set < sets_.size(); ++set) {
      const auto& first_queue =
          ranks_[static_cast<size_t>(sets_[set][0])].queue;
      if (first_queue.empty()) continue;
      const Batch batch = first_queue.front();
      if (batch.first != static_cast<int>(set)) continue;
      const bool all =
          std::all_of(sets_[set].begin(), sets_[set].end(), [&](int member) {
            const auto& queue = ranks_[static_cast<size_t>(member)].queue;
            return !queue.empty() && queue.front() == batch;
          });
      if (!all) continue;
      for (const int member : sets_[set]) {
        Rank& rank = ranks_[static_cast<size_t>(member)];
        rank.queue.erase(rank.queue.begin());
        const bool is_second = batch.second >= kAgain;
        ++(is_second ? rank.ended : rank.may_go_on)[batch.first];
        ++finished_;
      }
    }
  }

 public:
  bool AllHaveFinished() {
    for (size_t i = 0; i < 1000; ++i) Finish();
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const Rank& rank) { return rank.queue.empty(); });
  }
  int finished() const { return finished_; }

 private:
  const std::vector<std::vector<int>> sets_;
  const int window_;
  std::vector<Rank> ranks_;
  std::map<Batch, std::vector<Place>> proposals_;
  std::vector<std::pair<int, Batch>> news_;
  std::mt19937 draw_;
  int finished_ = 0;
};

TEST(gpus_of_overlapping_sets_do_not_wait_for_each_other) {
  const std::vector<std::vector<int>> sets = {{0, 1, 2, 3}, {0, 1}, {1, 2},
                                              {2, 3, 0},    {0, 3}, {1}};
  for (unsigned seed = 0; seed < 200; ++seed) {
    Gpus gpus(sets, 4, seed, kNoWindow);
    ASSERT_TRUE(gpus.Run(6));
    EXPECT_TRUE(gpus.AllHaveFinished());
    EXPECT_EQ(gpus.finished(), 2 * 6 * (4 + 2 + 2 + 3 + 2 + 1));
    if (test::failures > 0) return;
  }
}

// Many are begun, and only some of them can be told to the other ranks.
TEST(a_batch_that_goes_on_waits_for_none_that_it_holds_up) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    Gpus gpus({{0, 1, 2}}, 3, seed, 2);
    ASSERT_TRUE(gpus.Run(20));
    EXPECT_TRUE(gpus.AllHaveFinished());
    EXPECT_EQ(gpus.finished(), 2 * 20 * 3);
    if (test::failures > 0) return;
  }
}

}  // namespace
}  // namespace hvd
