// SPDX-License-Identifier: Apache-2.0
// A counter hands out parts. A round ends when no helper is inside.
#include "cpu/work_threads.h"

#include <chrono>
#include <exception>
#include <utility>

namespace hvd {
namespace {

using std::chrono::microseconds;
using std::chrono::steady_clock;

// The chunks of a large batch follow one another closely. A helper looks for
// the next one for this time before it sleeps.
constexpr microseconds kLookOut{30};

}  // namespace

WorkThreads::WorkThreads(int helpers) {
  threads_.reserve(static_cast<size_t>(helpers));
  try {
    for (int i = 0; i < helpers; ++i) threads_.emplace_back([this] { Help(); });
  } catch (const std::exception&) {
    // A limit of threads, or no memory for one. The caller does what helpers
    // would have done.
  }
}

WorkThreads::~WorkThreads() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkThreads::TakeParts(const std::function<void(int64_t)>& work,
                            int64_t count) {
  try {
    for (int64_t part = next_++; part < count; part = next_++) work(part);
  } catch (...) {
    next_ = count;
    std::lock_guard<std::mutex> lock(mutex_);
    if (thrown_ == nullptr) thrown_ = std::current_exception();
  }
}

void WorkThreads::Run(int64_t count, const std::function<void(int64_t)>& work) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    work_ = &work;
    count_ = count;
    next_ = 0;
    ++round_;
  }
  wake_.notify_all();
  TakeParts(work, count);
  std::unique_lock<std::mutex> lock(mutex_);
  ++round_;  // no helper may enter any more
  left_.wait(lock, [this] { return inside_ == 0; });
  const std::exception_ptr thrown = std::exchange(thrown_, nullptr);
  lock.unlock();
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

void WorkThreads::Help() {
  uint64_t seen = 0;
  while (true) {
    const auto look_out = steady_clock::now() + kLookOut;
    const auto is_open = [&] {
      const uint64_t round = round_;
      return round % 2 == 1 && round != seen;
    };
    while (!is_open() && steady_clock::now() < look_out) {
    }
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait(lock, [&] { return stop_ || is_open(); });
    if (stop_) return;
    seen = round_;
    const std::function<void(int64_t)>& work = *work_;
    const int64_t count = count_;
    ++inside_;
    lock.unlock();
    TakeParts(work, count);
    lock.lock();
    if (--inside_ == 0) left_.notify_one();
  }
}

}  // namespace hvd
