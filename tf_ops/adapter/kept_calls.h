// SPDX-License-Identifier: Apache-2.0
// KeptCalls: calls of a kernel that have ended, for its next runs.
#ifndef HVD_ADAPTER_KEPT_CALLS_H_
#define HVD_ADAPTER_KEPT_CALLS_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace hvd {

// A training loop runs a kernel with the same shapes again and again. A call
// that is kept has the request of the last run and its memory. So the next run
// need not describe it, and the background thread need not look up its name.
//
// Owners: a kernel, and its calls that have not ended. Any thread. `Call` has
// Reset, which makes it fit for another run.
template <typename Call>
class KeptCalls : public std::enable_shared_from_this<KeptCalls<Call>> {
 public:
  // A call that has ended, or a new one. It comes back when nobody has a
  // pointer to it any more.
  std::shared_ptr<Call> Take() {
    std::unique_ptr<Call> call;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!kept_.empty()) {
        call = std::move(kept_.back());
        kept_.pop_back();
      }
    }
    if (call == nullptr) call = std::make_unique<Call>();
    return {call.release(), [calls = this->shared_from_this()](Call* ended) {
              calls->Keep(std::unique_ptr<Call>(ended));
            }};
  }

 private:
  // Loops may have many calls of a kernel in flight.
  static constexpr size_t kMostKept = 4;

  void Keep(std::unique_ptr<Call> call) {
    // Frees tensors, maybe. Other runs must not wait for that.
    call->Reset();
    std::lock_guard<std::mutex> lock(mutex_);
    if (kept_.size() < kMostKept) kept_.push_back(std::move(call));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Call>> kept_;
};

}  // namespace hvd

#endif  // HVD_ADAPTER_KEPT_CALLS_H_
