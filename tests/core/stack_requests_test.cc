// SPDX-License-Identifier: Apache-2.0
// StackRequests: who is told to write, how often, and when the handler is.
#include "core/stack_requests.h"

#include <signal.h>

#include <atomic>
#include <thread>

#include "harness.h"

namespace hvd {
namespace {

using Clock = StackRequests::Clock;
using std::chrono::seconds;

std::atomic<int> raised{0};

void CountRaised(int) { ++raised; }

// Installed while this lives.
class Handler {
 public:
  Handler() : number_(StackRequests::UnusedSignal()) {
    raised = 0;
    struct sigaction action{};
    action.sa_handler = CountRaised;
    sigaction(number_, &action, &before_);
  }
  ~Handler() { sigaction(number_, &before_, nullptr); }
  int number() const { return number_; }

 private:
  const int number_;
  struct sigaction before_{};
};

TEST(stack_requests_are_told_once_and_ever_more_seldom) {
  StackRequests requests{seconds(60)};
  const Clock::time_point start = Clock::now();
  int told = 0;
  std::thread writer([&] {
    while (requests.Wait()) {
      ++told;
      requests.Written();
    }
  });
  std::vector<int> counted_s;
  for (int age_s = 0; age_s <= 1000; age_s += 10) {
    requests.Ask(start + seconds(age_s));
    requests.Look(start + seconds(age_s) + seconds(1));
    // Only what counted becomes overdue without its being written.
    while (!requests.idle()) std::this_thread::yield();
    if (static_cast<size_t>(told) > counted_s.size()) {
      counted_s.push_back(age_s);
    }
  }
  requests.Close();
  writer.join();
  // Gaps of 60, 120, 240 and 480 s.
  EXPECT_TRUE((counted_s == std::vector<int>{0, 60, 180, 420, 900}));
}

TEST(stack_requests_call_the_handler_when_nobody_writes) {
  Handler handler;
  StackRequests requests{seconds(60)};
  requests.SetSignal(handler.number());
  const Clock::time_point start = Clock::now();
  requests.Look(start + seconds(100));  // nobody has asked
  requests.Ask(start);
  requests.Look(start + seconds(1));
  EXPECT_EQ(raised.load(), 0);
  requests.Look(start + seconds(3));
  EXPECT_EQ(raised.load(), 1);
  requests.Look(start + seconds(6));
  EXPECT_EQ(raised.load(), 1);
  requests.Ask(start + seconds(60));
  requests.Look(start + seconds(63));
  EXPECT_EQ(raised.load(), 2);
}

TEST(stack_requests_never_raise_what_is_not_theirs) {
  const Clock::time_point start = Clock::now();
  {
    StackRequests requests{seconds(60)};
    requests.SetSignal(StackRequests::UnusedSignal());  // it would kill
    requests.Ask(start);
    requests.Look(start + seconds(3));
  }
  StackRequests requests{seconds(60)};
  {
    Handler handler;
    requests.SetSignal(handler.number());
    EXPECT_NE(StackRequests::UnusedSignal(), handler.number());
  }
  requests.Ask(start);
  requests.Look(start + seconds(3));
  EXPECT_EQ(raised.load(), 0);
}

TEST(stack_requests_end_with_the_runtime) {
  StackRequests requests{seconds(60)};
  std::thread writer([&] { EXPECT_FALSE(requests.Wait()); });
  requests.Close();
  writer.join();
  requests.Ask(Clock::now());
  EXPECT_FALSE(requests.Wait());
  EXPECT_TRUE(requests.idle());
}

}  // namespace
}  // namespace hvd
