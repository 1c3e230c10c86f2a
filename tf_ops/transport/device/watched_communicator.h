// SPDX-License-Identifier: Apache-2.0
// WatchedCommunicator: a communicator until it fails, and why it has.
#ifndef HVD_TRANSPORT_DEVICE_WATCHED_COMMUNICATOR_H_
#define HVD_TRANSPORT_DEVICE_WATCHED_COMMUNICATOR_H_

#include <chrono>
#include <memory>
#include <utility>

#include "core/status.h"
#include "transport/device/communicator.h"

namespace hvd {

// Owner: a LaneDecision, and then the DirectLane. Background thread only.
class WatchedCommunicator {
 public:
  using Clock = std::chrono::steady_clock;

  // Once, before anything that asks the communicator or gives it work.
  void Watch(std::unique_ptr<Communicator> communicator) {
    communicator_ = std::move(communicator);
  }
  // May take some seconds. Why the communicator was broken is kept.
  void Destroy() { communicator_.reset(); }

  // Not Ok: it is of no use any more, since then.
  const Status& broken() const { return broken_; }
  Clock::time_point broken_at() const { return broken_at_; }

  // Aborts it. Its kernels then end. The first reason counts.
  void Break(const Status& why) {
    if (!broken_.ok()) return;
    // Peers wait for this GPU, whatever the reason is. So it is one that ends
    // the rank.
    broken_ =
        why.code() == StatusCode::kPeerLost ? why : Internal(why.message());
    broken_at_ = Clock::now();
    if (communicator_ != nullptr) communicator_->Abort();
  }

  // See Communicator. Does not break it.
  Result<bool> IsReady() { return communicator_->IsReady(); }
  Status Launch(const CommunicatorCalls& calls, DeviceStream* stream) {
    return communicator_->Launch(calls, stream);
  }

  // The communicator is not broken, and takes nothing yet: what it was given
  // last may not be queued. What is queued behind that would not wait for it.
  // Breaks one that has failed.
  bool IsQueueing() {
    if (!broken_.ok()) return false;
    const Result<bool> is_ready = communicator_->IsReady();
    if (!is_ready.ok()) Break(is_ready.status());
    return is_ready.ok() && !is_ready.value();
  }
  // What was launched then may be queued any moment. It takes no longer than
  // that, unless there is a link to make for it. Nobody says when it is queued,
  // so the thread must not sleep till then.
  static constexpr std::chrono::milliseconds kUsualLaunch{1000};
  static bool IsQueuedSoon(Clock::time_point launched_at) {
    return Clock::now() < launched_at + kUsualLaunch;
  }

  // While a GPU works. True if it has failed just now.
  bool HasFailed() {
    const bool was_broken = !broken_.ok();
    (void)IsQueueing();
    return !was_broken && !broken_.ok();
  }

  // The communicator is broken, and may still queue what it was given, on
  // memory that a batch would give back.
  bool IsGoing() { return !broken_.ok() && !communicator_->IsGone(); }

 private:
  std::unique_ptr<Communicator> communicator_;
  Status broken_;
  Clock::time_point broken_at_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_WATCHED_COMMUNICATOR_H_
