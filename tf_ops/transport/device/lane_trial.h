// SPDX-License-Identifier: Apache-2.0
// LaneTrial: GPUs try a new communicator. That it is ready says that ranks have
// met: it may make its links at the first call.
#ifndef HVD_TRANSPORT_DEVICE_LANE_TRIAL_H_
#define HVD_TRANSPORT_DEVICE_LANE_TRIAL_H_

#include <array>
#include <chrono>
#include <functional>
#include <memory>

#include "core/status.h"
#include "core/transport.h"
#include "transport/device/device.h"
#include "transport/device/gpu_queue.h"
#include "transport/device/watched_communicator.h"

namespace hvd {

// It has its place in the order of the GPU, as any batch, once the GPUs of all
// have come to it. On a GPU that is not there yet, another set's batch may wait
// for a peer where it has to go first.
//
// Owner: a LaneDecision. Background thread only.
class LaneTrial {
 public:
  using Clock = std::chrono::steady_clock;

  struct Setup {
    Transport* host = nullptr;
    std::shared_ptr<GpuQueue> queue;
    WatchedCommunicator* communicator = nullptr;
    std::function<void()> wake;  // by any thread, when the GPU has come
    int set_id = 0;              // see LaneOwner
    // Segment::ready of a tensor: the trial begins behind it.
    std::shared_ptr<const void> ready;
    int place = 0, gpus = 1;  // in the communicator
    // From the launch on.
    std::chrono::milliseconds limit{0};
    Status too_late;  // why it fails behind that
  };

  explicit LaneTrial(Setup setup);
  // Before that, the communicator has to go, or the trial to be over.
  ~LaneTrial() { Leave(); }
  LaneTrial(const LaneTrial&) = delete;
  LaneTrial& operator=(const LaneTrial&) = delete;

  // Finds its memory, and when the GPU can begin. Not Ok: this rank cannot.
  Status Prepare();
  // Every rank does, at the same place in the order of batches. `error`: why
  // this rank cannot take part.
  void Start(const Status& error);
  // What it has started on the host transport.
  std::array<BatchId, 3> on_host() const { return {coming_, before_, behind_}; }
  // How many of these count now.
  int host_batches() const;

  // True if anything moved.
  bool Advance();
  bool is_over() const { return meeting_->stage == Stage::kOver; }
  // A member has ended, and has had the time to complete it. Before the launch
  // the host transport tells that by itself.
  void EndWithMember(const Status& why);
  // The trial has no more to do with the GPU: it is over.
  void Leave() { meeting_->Leave(); }

  // Once it is over. Not Ok: it failed.
  const Status& status() const;
  // Another rank's failure may have led to that.
  bool is_guess() const;
  // The trial was not launched because another rank could not take part.
  bool is_told_by_peer() const;

 private:
  enum class Stage {
    kMeeting,   // its number is on the host transport
    kMet,       // to be launched in its turn
    kLaunched,  // given to the communicator, maybe not yet to the GPU
    kRunning,   // the GPU has it
    kOver,
  };
  // The host transport's batches share it, because they may end after this
  // object.
  struct Meeting {
    void Leave();

    LaunchOrder* order = nullptr;  // of the queue, which outlives all batches
    int set_id = 0;
    Stage stage = Stage::kMeeting;
    bool has_come = true;        // this GPU, or it never will
    bool all_have_come = false;  // or cannot
    // This GPU has done with it, or will never have to do with it.
    bool is_left = false;
    LaunchOrder::Place proposed = 0;
    LaunchOrder::Place place = 0;      // the largest proposal, in the end
    std::shared_ptr<const void> work;  // see GpuQueue::Work
    Status status;                     // not Ok: it has failed
  };

  void StartComing(const Status& error);
  void StartBefore(const Status& error);
  void StartBehind();
  // True if the GPU has come to it by now.
  bool Come();
  bool Launch();
  Status Queue();
  bool Record();
  bool AwaitEnd();
  // True if it was launched too long ago. It has then failed.
  bool PassLimit();

  const Setup setup_;
  const std::shared_ptr<Meeting> meeting_ = std::make_shared<Meeting>();
  std::shared_ptr<GpuQueue::Buffer> buffer_;
  // Reached when this GPU comes to the trial. Null: it has, or never will.
  std::unique_ptr<DeviceEvent> comes_;
  BatchId coming_ = 0, before_ = 0, behind_ = 0;
  bool was_launched_ = false;
  bool was_too_late_ = false;
  Clock::time_point launched_at_;
  std::unique_ptr<DeviceEvent> finished_;
  Status own_failure_;  // not Ok: this GPU cannot come
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_LANE_TRIAL_H_
