// SPDX-License-Identifier: Apache-2.0
// StackRequests: makes this process write the stacks of its Python threads.
#ifndef HVD_CORE_STACK_REQUESTS_H_
#define HVD_CORE_STACK_REQUESTS_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

namespace hvd {

// The background thread asks for stacks. A thread that may run Python waits for
// requests, and writes them. It cannot run while another thread holds the
// interpreter and does not let go. Then a signal handler writes the stacks,
// which needs no interpreter; see docs/decisions/0008.
class StackRequests {
 public:
  using Clock = std::chrono::steady_clock;

  // The first request counts. The next one counts after `gap`, then after twice
  // that, and so on up to an hour. So a job that is stalled over night does not
  // fill its log.
  explicit StackRequests(std::chrono::duration<double> gap);

  // Background thread. Ask requests stacks. Look is called from time to time,
  // and calls the handler when the stacks are overdue.
  void Ask(Clock::time_point now);
  void Look(Clock::time_point now);

  // Any thread. Waits for a request. True: write the stacks and call Written.
  // False: there will be no more requests.
  bool Wait();
  void Written();
  void Close();
  // Whether no stacks are owed.
  bool idle();

  // Any thread. From now on, signal `number` writes the stacks, in whichever
  // thread it is raised. 0: there is no such signal.
  void SetSignal(int number);
  // The highest real-time signal without a handler in this process. 0: none.
  static int UnusedSignal();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool asked_ = false;  // Wait has not returned for it yet
  bool closed_ = false;
  std::optional<Clock::time_point> overdue_at_;  // set: not yet written
  std::optional<Clock::time_point> next_;        // no request before it counts
  Clock::duration gap_;
  int signal_ = 0;
  void (*handler_)(int) = nullptr;  // found by SetSignal
};

}  // namespace hvd

#endif  // HVD_CORE_STACK_REQUESTS_H_
