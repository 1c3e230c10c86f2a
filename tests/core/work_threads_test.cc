// SPDX-License-Identifier: Apache-2.0
// Threads that share work, and how many of them a rank should have.
#include "cpu/work_threads.h"

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cpu/spare_cores.h"
#include "harness.h"

namespace hvd {
namespace {

TEST(every_part_is_done_once_before_run_returns) {
  for (int helpers : {0, 1, 3}) {
    WorkThreads threads(helpers);
    EXPECT_EQ(threads.helpers(), helpers);
    for (int round = 0; round < 2000; ++round) {
      // Not atomic: a sanitizer sees a part that is done twice or too late.
      std::vector<int> done(round % 17);
      threads.Run(static_cast<int64_t>(done.size()),
                  [&](int64_t part) { done[part] += round + 1; });
      for (int value : done) EXPECT_EQ(value, round + 1);
    }
  }
}

TEST(helpers_take_part) {
  WorkThreads threads(1);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  std::atomic<int> inside{0};
  // Both parts are under way at once, or this does not return.
  threads.Run(2, [&](int64_t) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      seen.insert(std::this_thread::get_id());
    }
    ++inside;
    while (inside < 2) std::this_thread::yield();
  });
  EXPECT_EQ(seen.size(), 2u);
}

TEST(threads_that_sleep_are_stopped) {
  WorkThreads threads(3);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

TEST(helpers_by_cores) {
  EXPECT_EQ(HelperCount(1, 64, 1), 0);
  EXPECT_EQ(HelperCount(5, 2, 2), 4);
  EXPECT_EQ(HelperCount(0, 2, 1), 0);
  EXPECT_EQ(HelperCount(0, 2, 2), 0);
  EXPECT_EQ(HelperCount(0, 8, 4), 0);
  EXPECT_EQ(HelperCount(0, 8, 2), 1);
  EXPECT_EQ(HelperCount(0, 64, 8), 2);
  EXPECT_EQ(HelperCount(0, 64, 1), 3);
}

TEST(cores_are_those_that_may_be_used_within_the_quota) {
  EXPECT_TRUE(CountCores(UsableCores(), {}) >= 1);
  EXPECT_EQ(CountCores("", {}), 1);
  EXPECT_EQ(CountCores("", 8), 1);
  EXPECT_EQ(CountCores("\x0f\x81", {}), 6);
  EXPECT_EQ(CountCores("\x0f\x81", 8), 6);
  EXPECT_EQ(CountCores("\x0f\x81", 2), 2);
  EXPECT_EQ(CountCores("\x0f\x81", 0), 1);
}

TEST(ranks_share_cores_where_their_sets_meet) {
  const std::string low = "\x0f", high = "\xf0", all = "\xff";
  EXPECT_EQ(SharingRanks({low, high, low}, low), 2);
  EXPECT_EQ(SharingRanks({low, high, all}, high), 2);
  EXPECT_EQ(SharingRanks({all, all, all}, all), 3);
  // Whoever does not know may be anywhere.
  EXPECT_EQ(SharingRanks({low, ""}, low), 2);
  EXPECT_EQ(SharingRanks({low, ""}, ""), 2);
}

// Each thread is to get a stack larger than any address space.
TEST(a_worker_that_is_not_to_be_had_is_done_without) {
  pthread_attr_t usual, huge;
  ASSERT_TRUE(pthread_getattr_default_np(&usual) == 0);
  ASSERT_TRUE(pthread_getattr_default_np(&huge) == 0);
  ASSERT_TRUE(pthread_attr_setstacksize(&huge, size_t{1} << 50) == 0);
  ASSERT_TRUE(pthread_setattr_default_np(&huge) == 0);
  std::vector<int> done(5);
  {
    WorkThreads threads(2);
    EXPECT_EQ(threads.helpers(), 0);
    threads.Run(5, [&](int64_t part) { ++done[part]; });
  }
  ASSERT_TRUE(pthread_setattr_default_np(&usual) == 0);
  EXPECT_TRUE(done == std::vector<int>(5, 1));
}

TEST(what_a_part_throws_reaches_the_caller_when_nobody_works) {
  WorkThreads threads(2);
  for (int round = 0; round < 500; ++round) {
    bool caught = false;
    {
      // Gone after the call: a sanitizer sees a helper that still uses it.
      std::vector<int> done(8);
      try {
        threads.Run(8, [&](int64_t part) {
          done[part] = 1;
          if (part == round % 8) throw std::bad_alloc();
        });
      } catch (const std::bad_alloc&) {
        caught = true;
      }
    }
    EXPECT_TRUE(caught);
  }
  std::vector<int> done(8);
  threads.Run(8, [&](int64_t part) { ++done[part]; });
  EXPECT_TRUE(done == std::vector<int>(8, 1));
}

TEST(spare_cores_give_the_threads_that_were_asked_for) {
  SpareCores none(1, 1), two(3, 1);
  EXPECT_TRUE(none.Threads() == nullptr);
  ASSERT_TRUE(two.Threads() != nullptr);
  EXPECT_EQ(two.Threads()->helpers(), 2);
  EXPECT_TRUE(two.Threads() == two.Threads());
}

}  // namespace
}  // namespace hvd
