// SPDX-License-Identifier: Apache-2.0
// The part of LaneDecision in which GPUs connect, and try it.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/device/lane_decision.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

}  // namespace

// --- The communicator ---

void LaneDecision::Connect(const LaneExchange& exchange) {
  state_ = State::kConnecting;
  connecting_since_ = Clock::now();
  all_have_kernels_ = std::all_of(
      exchange.offers().begin(), exchange.offers().end(),
      [](const LaneOffer& offer) { return offer.has_kernels != 0; });
  for (const LaneOffer& offer : exchange.offers()) {
    trial_limit_ = std::min(trial_limit_, milliseconds(offer.trial_limit_ms));
  }
  const std::vector<int> peers = GpuPeers();
  const auto own = std::find(peers.begin(), peers.end(), host_->rank());
  // One of zeros: the rank could not make one. Its peers refuse it alike.
  auto made = communicators_->Connect(exchange.IdOf(peers.front()),
                                      static_cast<int>(own - peers.begin()),
                                      static_cast<int>(peers.size()), ready_);
  if (!made.ok()) return EndConnecting(made.status());
  communicator_->Watch(std::move(made.value()));
}

bool LaneDecision::AdvanceConnecting() {
  const Result<bool> is_ready = communicator_->IsReady();
  if (is_ready.ok() && !is_ready.value()) {
    if (Clock::now() < connecting_since_ + connect_limit_) return false;
    offer_.guess = LaneOffer::kWaited;
    EndConnecting(LimitReached("NCCL did not connect", connect_limit_));
  } else {
    EndConnecting(is_ready.status());
  }
  return true;
}

Status LaneDecision::LimitReached(const std::string& what,
                                  milliseconds limit) const {
  std::string text =
      what + " within " + std::to_string(limit.count() / 1000) + " s";
  if (limit < connect_limit_) text += ", half of HVD_STALL_SHUTDOWN_S";
  text += "; NCCL_DEBUG=INFO shows what it waits for";
  if (owner_->hosts.has_two_levels() && !is_by_host_) {
    text += "; HVD_HIERARCHICAL_ALLREDUCE=1 needs it within hosts only";
  }
  return FailedPrecondition(std::move(text));
}

void LaneDecision::EndConnecting(const Status& status) {
  state_ = State::kConnected;
  if (!status.ok()) offer_.Refuse(status.message());
  Ask();
}

// --- The trial ---

void LaneDecision::StartTrial() {
  state_ = State::kTrying;
  trial_ = NewTrial();
  Status error;
  if (has_refused()) {
    error = FailedPrecondition("it is not connected");
  } else {
    error = trial_->Prepare();
    if (!error.ok()) offer_.Refuse(error.message());
  }
  trial_->Start(error);
  for (const BatchId id : trial_->on_host()) own_on_host_.push_back(id);
}

std::unique_ptr<LaneTrial> LaneDecision::NewTrial() {
  const std::vector<int> peers = GpuPeers();
  LaneTrial::Setup setup;
  setup.host = host_;
  setup.queue = queue_;
  setup.communicator = communicator_.get();
  setup.wake = wake_;
  setup.set_id = owner_->set_id;
  setup.ready = ready_;
  setup.place = static_cast<int>(
      std::find(peers.begin(), peers.end(), host_->rank()) - peers.begin());
  setup.gpus = static_cast<int>(peers.size());
  setup.limit = trial_limit_;
  setup.too_late =
      LimitReached("NCCL did not move its first numbers", trial_limit_);
  return std::make_unique<LaneTrial>(std::move(setup));
}

bool LaneDecision::AdvanceTrial() {
  const bool moved = trial_->Advance();
  if (!trial_->is_over()) return moved;
  const auto ended = std::move(trial_);
  state_ = State::kTried;
  // Else it was another rank that could not.
  if (!ended->status().ok() && !has_refused()) {
    if (ended->is_guess()) offer_.guess = LaneOffer::kWaited;
    if (ended->is_told_by_peer()) offer_.guess = LaneOffer::kToldByPeer;
    offer_.Refuse(ended->status().message());
  }
  Ask();
  return true;
}

void LaneDecision::EndWithMember(const Status& why) {
  if (trial_ != nullptr) trial_->EndWithMember(why);
}

}  // namespace hvd
