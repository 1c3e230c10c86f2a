// SPDX-License-Identifier: Apache-2.0
// LaneDecision: how ranks find out whether their GPUs can work among
// themselves, and come to have a communicator.
#ifndef HVD_TRANSPORT_DEVICE_LANE_DECISION_H_
#define HVD_TRANSPORT_DEVICE_LANE_DECISION_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/lanes.h"
#include "core/status.h"
#include "core/transport.h"
#include "transport/device/communicator.h"
#include "transport/device/gpu_queue.h"
#include "transport/device/lane_exchange.h"
#include "transport/device/lane_offer.h"
#include "transport/device/lane_trial.h"
#include "transport/device/watched_communicator.h"

namespace hvd {

// At the first batch its ranks meet, tell each other what GPUs they have, and
// connect a communicator. When all have tried, they meet again. Once the GPUs
// of all have come to it, they try it. When that is over, they meet and tell
// each other whether it worked. If so, they meet a fourth time, and from there
// on have the communicator. If it cannot be had, the first rank says why in one
// line.
//
// Owner: a DirectLane, whose Progress calls Advance. Background thread only.
// What it starts on the host transport counts as the lane's.
class LaneDecision {
 public:
  // The pointers outlive this object. A communicator that is not ready after
  // `connect_limit` is given up. The trial has no longer either: see FindOffer.
  // `wake`, `queue`: see DirectLane.
  LaneDecision(Transport* host, std::shared_ptr<GpuQueue> queue,
               Communicators* communicators, std::function<void()> wake,
               const LaneOwner* owner, std::chrono::milliseconds connect_limit);
  ~LaneDecision();
  LaneDecision(const LaneDecision&) = delete;
  LaneDecision& operator=(const LaneDecision&) = delete;

  // A batch starts. Asks to meet if it is time to, and the batch has a tensor
  // of this rank.
  void Notice(const Batch& batch);
  // See Transport::Meet.
  void Meet(bool all_came);
  // True if anything moved.
  bool Advance();
  // A member has ended, and has had the time to complete what is under way.
  void EndWithMember(const Status& why);
  // What all have agreed on: at the last meeting, once. Else null.
  std::unique_ptr<WatchedCommunicator> Take();

  // --- What all ranks agree on. To be asked once they do ---
  // GPUs work among themselves within hosts: see LaneOwner::is_hierarchical.
  bool is_by_host() const { return is_by_host_; }
  // The GPUs of all ranks can copy elements.
  bool all_have_kernels() const { return all_have_kernels_; }
  // The ranks of this one's communicator: all, or those of this host.
  std::vector<int> GpuPeers() const;
  // What took longer than that, such as "NCCL did not connect".
  Status LimitReached(const std::string& what,
                      std::chrono::milliseconds limit) const;

  // --- What it has under way ---
  // The communicator of this decision may have work on the GPU.
  bool uses_gpu() const {
    return trial_ != nullptr ||
           (communicator_ != nullptr && !communicator_->broken().ok());
  }
  // See Transport. A trial counts once.
  int own_in_flight() const;
  // How many more of a trial the host transport counts.
  int trial_surplus() const {
    return trial_ == nullptr ? 0 : trial_->host_batches() - 1;
  }

 private:
  using Clock = std::chrono::steady_clock;

  enum class State {
    kUndecided,   // nothing was tried yet: to meet
    kOffering,    // the offers are on the host transport
    kConnecting,  // the communicator is not ready here
    kConnected,   // it is, or cannot be had: to meet again
    kTrying,      // the GPUs try it
    kTried,       // that is over: to meet again
    kTelling,     // whether it worked, is on the host transport
    kAgreed,      // it did on all: to meet for the last time
    kDirect,
    kStagedForGood,
  };
  void Ask();
  void HearAnswer(const Status& answer);
  void StartOffering();
  void StartTelling();
  // Tells all what this rank offers, and hears what the others do.
  void ExchangeOffers();
  bool AdvanceOffering();
  bool AdvanceConnecting();
  bool AdvanceTrial();
  bool AdvanceTelling();
  void Connect(const LaneExchange& exchange);
  // The communicator is connected, or `status` says why not.
  void EndConnecting(const Status& status);
  void StartTrial();
  std::unique_ptr<LaneTrial> NewTrial();
  // What the GPUs do not do for lack of them, in one line.
  void WarnOfKernels(const LaneExchange& exchange);
  void StayStaged(const Status& why);
  // Those that are over.
  void ForgetOwnOnHost();
  bool has_refused() const { return offer_.refusal[0] != '\0'; }

  Transport* const host_;
  const std::shared_ptr<GpuQueue> queue_;
  Communicators* const communicators_;
  const std::function<void()> wake_;
  const LaneOwner* const owner_;
  const std::chrono::milliseconds connect_limit_;
  State state_ = State::kUndecided;
  // Segment::ready of a batch for which this rank has asked to meet, the last
  // one. It says which GPU. Null: this rank has not asked.
  std::shared_ptr<const void> ready_;
  // This rank has asked to meet, and has no answer.
  bool is_asking_ = false;
  LaneOffer offer_;
  std::shared_ptr<LaneExchange> exchange_;  // null: none is under way
  Clock::time_point connecting_since_;
  bool is_by_host_ = false;
  bool all_have_kernels_ = false;
  std::chrono::milliseconds trial_limit_;  // the same on all ranks
  std::unique_ptr<LaneTrial> trial_;       // null: none is under way
  // Null: it was taken.
  std::unique_ptr<WatchedCommunicator> communicator_;
  // The host transport's that nobody has started, until peers are served.
  std::vector<BatchId> own_on_host_;
  // Goes with this object: what is told later finds nobody.
  const std::shared_ptr<LaneDecision*> self_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_LANE_DECISION_H_
