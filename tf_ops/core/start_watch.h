// SPDX-License-Identifier: Apache-2.0
// StartWatch: tells of a start that other ranks keep waiting.
#ifndef HVD_CORE_START_WATCH_H_
#define HVD_CORE_START_WATCH_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace hvd {

// Lives as long as the start. Meanwhile a thread of its own watches the time,
// because the one that starts may be anywhere in MPI. Nobody knows yet which
// ranks are missing: those that do not warn.
class StartWatch {
 public:
  // After `warning_s` it warns. After `limit_s` it says so and calls `give_up`,
  // which need not return. 0: never.
  StartWatch(double warning_s, double limit_s, std::function<void()> give_up);
  ~StartWatch();
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

 private:
  void Watch(double warning_s, double limit_s,
             const std::function<void()>& give_up);
  // Sleeps until so many seconds after the start. False: it is over.
  bool Sleep(double seconds);

  const std::chrono::steady_clock::time_point begin_ =
      std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::condition_variable over_changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace hvd

#endif  // HVD_CORE_START_WATCH_H_
