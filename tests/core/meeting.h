// SPDX-License-Identifier: Apache-2.0
// Meeting: threads of a test wait for each other.
#ifndef HVD_TESTS_CORE_MEETING_H_
#define HVD_TESTS_CORE_MEETING_H_

#include <condition_variable>
#include <mutex>

namespace hvd {

// A place where `size` threads meet, as often as they like.
class Meeting {
 public:
  explicit Meeting(int size) : size_(size) {}

  // Returns when all of them have called it as often as the caller.
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const int round = round_;
    if (++here_ == size_) {
      here_ = 0;
      ++round_;
      all_here_.notify_all();
    }
    all_here_.wait(lock, [&] { return round_ != round; });
  }

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  int here_ = 0, round_ = 0;
};

}  // namespace hvd

#endif  // HVD_TESTS_CORE_MEETING_H_
