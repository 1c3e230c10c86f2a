// SPDX-License-Identifier: Apache-2.0
// The part of DirectLane in which cards try a new communicator. That it is
// ready says that ranks have met: it may make its links at the first call.
#include <algorithm>
#include <memory>

#include "transport/device/direct_lane.h"
#include "transport/device/small_batch.h"

namespace hvd {
namespace {

// One number for each use.
constexpr int kSummed = 0, kTold = 1, kSent = 2, kReceived = 3, kNumbers = 4;

}  // namespace

std::chrono::milliseconds DirectLane::OwnTrialLimit() const {
  if (owner_.stall_shutdown_s <= 0) return connect_limit_;
  const std::chrono::duration<double> half(owner_.stall_shutdown_s / 2);
  if (half >= connect_limit_) return connect_limit_;
  return std::chrono::duration_cast<std::chrono::milliseconds>(half);
}

// It has its place in the order of the card, as any batch.
void DirectLane::StartTrial() {
  state_ = State::kTrying;
  const auto flight = flights_[next_id_++] = std::make_shared<Flight>();
  flight->is_trial = true;
  flight->batch.memory = MemoryKind::kCuda;
  flight->batch.segments.emplace_back().ready = ready_;
  flight->done = [this](const Status& status) { EndTrial(status); };
  Status error;
  if (offer_.refusal[0] != '\0') {
    error = FailedPrecondition("it is not connected");
  } else {
    error = TakeBuffer(flight.get(), kNumbers * sizeof(float));
    if (!error.ok()) offer_.Refuse(error.message());
  }
  StartBefore(flight, error);
  StartBehind(flight.get());
  own_on_host_.push_back(flight->before);
  own_on_host_.push_back(flight->behind);
}

void DirectLane::EndTrial(const Status& status) {
  state_ = State::kTried;
  if (!status.ok() && offer_.refusal[0] == '\0') {
    // Else it was another rank that could not.
    if (!has_tried_) offer_.is_guess = 1;
    offer_.Refuse(status.message());
  }
  Ask();
}

// All cards take part, and each sends to the next one.
Status DirectLane::QueueTrial(const Flight& flight) {
  using Kind = CommunicatorCall::Kind;
  has_tried_ = true;
  const std::vector<int> peers = CardPeers();
  const auto cards = static_cast<int>(peers.size());
  const auto own = static_cast<int>(
      std::find(peers.begin(), peers.end(), rank()) - peers.begin());
  auto* const numbers = static_cast<float*>(flight.buffer->memory.get());
  CommunicatorCalls calls;
  calls.calls.push_back(
      {Kind::kAllreduce, 0, numbers + kSummed, numbers + kSummed, 1});
  calls.calls.push_back(
      {Kind::kBroadcast, 0, numbers + kTold, numbers + kTold, 1});
  if (cards > 1) {
    calls.calls.push_back(
        {Kind::kSend, (own + 1) % cards, numbers + kSent, nullptr, 1});
    calls.calls.push_back({Kind::kReceive, (own + cards - 1) % cards, nullptr,
                           numbers + kReceived, 1});
  }
  return communicator_->Launch(calls, queue_->stream());
}

}  // namespace hvd
