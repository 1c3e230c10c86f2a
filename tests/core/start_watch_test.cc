// SPDX-License-Identifier: Apache-2.0
// StartWatch: when it warns, when it gives up, and that it ends with the start.
#include "core/start_watch.h"

#include <chrono>
#include <future>
#include <mutex>
#include <string>
#include <vector>

#include "core/log.h"
#include "harness.h"

namespace hvd {
namespace {

using std::chrono::seconds;

// Collects the log while it lives, and tells of a line with certain words.
class Lines {
 public:
  Lines() {
    SetLogSink([this](LogLevel level, const std::string& text) {
      std::lock_guard<std::mutex> lock(mutex_);
      lines_.push_back((level == LogLevel::kError ? "error: " : "") + text);
      if (lines_.size() == 1) first_.set_value();
    });
  }
  ~Lines() { SetLogSink(nullptr); }

  bool WaitForFirst() {
    return first_.get_future().wait_for(seconds(20)) ==
           std::future_status::ready;
  }
  std::vector<std::string> lines() {
    std::lock_guard<std::mutex> lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
  std::promise<void> first_;
};

void NeverGivesUp() { EXPECT_TRUE(false); }

TEST(start_watch_says_nothing_of_a_start_in_time) {
  Lines log;
  {
    const StartWatch watch(3600, 7200, NeverGivesUp);
  }
  {
    const StartWatch watch(0, 0, NeverGivesUp);
  }
  EXPECT_EQ(log.lines().size(), 0u);
}

TEST(start_watch_warns_once) {
  Lines log;
  {
    const StartWatch watch(0.05, 0, NeverGivesUp);
    EXPECT_TRUE(log.WaitForFirst());
  }
  ASSERT_EQ(log.lines().size(), 1u);
  EXPECT_EQ(log.lines()[0].find("hvd.init() has waited for other ranks"), 0u);
  EXPECT_TRUE(log.lines()[0].find("share by hvdrun --network-interfaces.") !=
              std::string::npos);
}

TEST(start_watch_gives_up_behind_its_words) {
  for (const double warning_s : {0.0, 0.05}) {
    Lines log;
    std::promise<size_t> given_up;
    const StartWatch watch(warning_s, 0.1,
                           [&] { given_up.set_value(log.lines().size()); });
    std::future<size_t> lines = given_up.get_future();
    ASSERT_TRUE(lines.wait_for(seconds(20)) == std::future_status::ready);
    EXPECT_EQ(lines.get(), warning_s > 0 ? 2u : 1u);
    EXPECT_TRUE(log.lines().back().find("error: hvd.init() has waited") == 0);
  }
}

TEST(start_watch_takes_any_number_of_seconds) {
  Lines log;
  {
    const StartWatch watch(1e300, 1e308, NeverGivesUp);
  }
  EXPECT_EQ(log.lines().size(), 0u);
}

}  // namespace
}  // namespace hvd
