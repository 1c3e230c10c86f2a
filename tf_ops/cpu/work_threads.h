// SPDX-License-Identifier: Apache-2.0
// WorkThreads: a few threads that share the work of a large chunk.
#ifndef HVD_CPU_WORK_THREADS_H_
#define HVD_CPU_WORK_THREADS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace hvd {

// A helper takes parts when it gets a core. The caller does the parts that no
// helper has taken. So it never waits for a helper to wake up, only for one
// that is in the middle of a part. One caller at a time: the background thread.
class WorkThreads {
 public:
  // Starts so many threads beside the caller's, or fewer if the system gives no
  // more.
  explicit WorkThreads(int helpers);
  ~WorkThreads();
  WorkThreads(const WorkThreads&) = delete;
  WorkThreads& operator=(const WorkThreads&) = delete;

  int helpers() const { return static_cast<int>(threads_.size()); }

  // Calls work(0) to work(count - 1), once each, on any of the threads. Returns
  // when all calls have returned. If one throws, the rest of the parts may be
  // left undone, and the caller gets the exception, once no thread works any
  // more.
  void Run(int64_t count, const std::function<void(int64_t)>& work);

 private:
  void Help();
  // Takes parts until none is left. Keeps the first exception in thrown_.
  void TakeParts(const std::function<void(int64_t)>& work, int64_t count);

  std::atomic<uint64_t> round_{0};  // of Run; odd: parts are free to take
  std::atomic<int64_t> next_{0};    // the next part
  std::mutex mutex_;                // guards what follows
  std::condition_variable wake_, left_;
  const std::function<void(int64_t)>* work_ = nullptr;
  int64_t count_ = 0;
  int inside_ = 0;  // how many helpers may have a part
  std::exception_ptr thrown_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace hvd

#endif  // HVD_CPU_WORK_THREADS_H_
