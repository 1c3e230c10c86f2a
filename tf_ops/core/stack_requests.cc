// SPDX-License-Identifier: Apache-2.0
// Hands requests for stacks to Python's thread, or raises the signal instead.
#include "core/stack_requests.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>

namespace hvd {
namespace {

using std::chrono::duration;
using std::chrono::duration_cast;

// A thread that runs Python code releases the interpreter after milliseconds.
// One that has not done so after this time is in a call that holds it. So no
// stack changes while the handler reads them all.
constexpr std::chrono::seconds kPatience{2};
constexpr std::chrono::hours kLongestGap{1};

// The signal's handler. Null if it has three arguments: then it is not the one
// we look for.
void (*HandlerOf(int number))(int) {
  struct sigaction action{};
  if (sigaction(number, nullptr, &action) != 0) return nullptr;
  return action.sa_handler;
}

}  // namespace

StackRequests::StackRequests(duration<double> gap)
    : gap_(duration_cast<Clock::duration>(gap)) {}

void StackRequests::Ask(Clock::time_point now) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_ || overdue_at_.has_value() || (next_ && now < *next_)) return;
  next_ = now + gap_;
  gap_ = std::min<Clock::duration>(2 * gap_, kLongestGap);
  asked_ = true;
  overdue_at_ = now + kPatience;
  changed_.notify_all();
}

void StackRequests::Look(Clock::time_point now) {
  int number = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!overdue_at_.has_value() || now < *overdue_at_) return;
    overdue_at_.reset();
    asked_ = false;
    number = signal_;
    // Someone else uses the signal meanwhile.
    if (handler_ == SIG_DFL || HandlerOf(number) != handler_) number = 0;
  }
  if (number == 0) return;
  // The signal is raised in this thread, which blocks all signals. So no other
  // thread is disturbed, and no call of the program is interrupted.
  sigset_t mine;
  sigemptyset(&mine);
  sigaddset(&mine, number);
  pthread_sigmask(SIG_UNBLOCK, &mine, nullptr);
  raise(number);
  pthread_sigmask(SIG_BLOCK, &mine, nullptr);
}

bool StackRequests::Wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return asked_ || closed_; });
  if (closed_) return false;
  asked_ = false;
  return true;
}

void StackRequests::Written() {
  std::lock_guard<std::mutex> lock(mutex_);
  overdue_at_.reset();
}

void StackRequests::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  overdue_at_.reset();
  changed_.notify_all();
}

bool StackRequests::idle() {
  std::lock_guard<std::mutex> lock(mutex_);
  return !overdue_at_.has_value();
}

void StackRequests::SetSignal(int number) {
  std::lock_guard<std::mutex> lock(mutex_);
  signal_ = number;
  handler_ = number == 0 ? nullptr : HandlerOf(number);
}

int StackRequests::UnusedSignal() {
  for (int number = SIGRTMAX; number > SIGRTMIN; --number) {
    if (HandlerOf(number) == SIG_DFL) return number;
  }
  return 0;
}

}  // namespace hvd
