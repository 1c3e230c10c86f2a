// SPDX-License-Identifier: Apache-2.0
// StackRequests: has this process write where its Python threads are.
#ifndef HVD_CORE_STACK_REQUESTS_H_
#define HVD_CORE_STACK_REQUESTS_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

namespace hvd {

// The background thread asks; a thread that may run Python waits and writes.
// Where that one cannot run, because another holds the interpreter and does not
// let go, a signal handler writes them that needs no interpreter; see
// docs/decisions/0008.
class StackRequests {
 public:
  using Clock = std::chrono::steady_clock;

  // The first request counts, then one after `gap`, after twice that, and so
  // on up to an hour: a job that is stalled over night does not fill its log.
  explicit StackRequests(std::chrono::duration<double> gap);

  // Background thread: requests, and from time to time, Look, which calls the
  // handler when the stacks are overdue.
  void Ask(Clock::time_point now);
  void Look(Clock::time_point now);

  // Any thread. True: write them and call Written; false: never again.
  bool Wait();
  void Written();
  void Close();
  // No stacks are owed.
  bool idle();

  // Any thread. What the process does about `number` from now on is to write
  // the stacks, in whatever thread it is raised; 0: nothing is.
  void SetSignal(int number);
  // The highest real-time signal that this process does nothing about; 0: none.
  static int UnusedSignal();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool asked_ = false;  // and Wait has not told it
  bool closed_ = false;
  std::optional<Clock::time_point> overdue_at_;  // not yet written
  std::optional<Clock::time_point> next_;  // requests before it do not count
  Clock::duration gap_;
  int signal_ = 0;
  void (*handler_)(int) = nullptr;  // as SetSignal found it
};

}  // namespace hvd

#endif  // HVD_CORE_STACK_REQUESTS_H_
