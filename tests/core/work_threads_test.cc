// SPDX-License-Identifier: Apache-2.0
// Threads that share work, and how many of them a rank should have.
#include "cpu/work_threads.h"

#include <atomic>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "cpu/spare_cores.h"
#include "harness.h"

namespace hvd {
namespace {

TEST(EveryPartIsDoneOnceBeforeRunReturns) {
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

TEST(HelpersTakePart) {
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

TEST(ThreadsThatSleepAreStopped) {
  WorkThreads threads(3);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

TEST(HelpersByCores) {
  EXPECT_EQ(HelperCount(1, 64, 1), 0);
  EXPECT_EQ(HelperCount(5, 2, 2), 4);
  EXPECT_EQ(HelperCount(0, 2, 1), 0);
  EXPECT_EQ(HelperCount(0, 2, 2), 0);
  EXPECT_EQ(HelperCount(0, 8, 4), 0);
  EXPECT_EQ(HelperCount(0, 8, 2), 1);
  EXPECT_EQ(HelperCount(0, 64, 8), 2);
  EXPECT_EQ(HelperCount(0, 64, 1), 3);
  EXPECT_TRUE(UsableCores() >= 1);
}

TEST(SpareCoresGiveTheThreadsThatWereAskedFor) {
  SpareCores none(1, 1), two(3, 1);
  EXPECT_TRUE(none.Threads() == nullptr);
  ASSERT_TRUE(two.Threads() != nullptr);
  EXPECT_EQ(two.Threads()->helpers(), 2);
  EXPECT_TRUE(two.Threads() == two.Threads());
}

}  // namespace
}  // namespace hvd
