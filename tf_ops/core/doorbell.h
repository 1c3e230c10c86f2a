// SPDX-License-Identifier: Apache-2.0
// Doorbell: wakes the background thread.
#ifndef HVD_CORE_DOORBELL_H_
#define HVD_CORE_DOORBELL_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace hvd {

// Ring may be called from any thread; Wait from the background thread.
class Doorbell {
 public:
  virtual ~Doorbell() = default;
  virtual void Ring() = 0;
  // Returns once the bell has been rung since the last Wait, or after `limit`.
  // It may spin for about `spin` before it sleeps. Others may have the core
  // meanwhile.
  virtual void Wait(std::chrono::microseconds limit,
                    std::chrono::microseconds spin) = 0;
};

// A doorbell that this process alone can ring.
class LocalDoorbell final : public Doorbell {
 public:
  void Ring() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      rung_ = true;
    }
    bell_.notify_one();
  }

  void Wait(std::chrono::microseconds limit,
            std::chrono::microseconds /*spin*/) override {
    std::unique_lock<std::mutex> lock(mutex_);
    bell_.wait_for(lock, limit, [this] { return rung_; });
    rung_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable bell_;
  bool rung_ = false;
};

}  // namespace hvd

#endif  // HVD_CORE_DOORBELL_H_
