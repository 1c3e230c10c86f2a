// SPDX-License-Identifier: Apache-2.0
// WorkThreads: a few threads that share the copying and adding of a large
// piece.
#ifndef HVD_TRANSPORT_WORK_THREADS_H_
#define HVD_TRANSPORT_WORK_THREADS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace hvd {

// Helpers take parts as they get a core; the caller does what nobody has taken.
// So it never waits for a helper to wake up, only for one in the middle of a
// part. One caller at a time: the background thread.
class WorkThreads {
 public:
  // With so many threads beside the caller's.
  explicit WorkThreads(int helpers);
  ~WorkThreads();
  WorkThreads(const WorkThreads&) = delete;
  WorkThreads& operator=(const WorkThreads&) = delete;

  int helpers() const { return static_cast<int>(threads_.size()); }

  // Calls work(0) to work(count - 1), once each, on any of the threads, and
  // returns when all have returned.
  void Run(int64_t count, const std::function<void(int64_t)>& work);

 private:
  void Help();
  // Until no part is left.
  void TakeParts(const std::function<void(int64_t)>& work, int64_t count);

  std::atomic<uint64_t> round_{0};  // of Run; odd: parts may be taken
  std::atomic<int64_t> next_{0};    // part
  std::mutex mutex_;                // of what follows
  std::condition_variable wake_, left_;
  const std::function<void(int64_t)>* work_ = nullptr;
  int64_t count_ = 0;
  int inside_ = 0;  // helpers that may hold a part
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_WORK_THREADS_H_
