// SPDX-License-Identifier: Apache-2.0
// The part of DirectLane in which GPUs try a new communicator. That it is
// ready says that ranks have met: it may make its links at the first call.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

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

// It has its place in the order of the GPU, as any batch.
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
    error = PrepareTrial(flight.get());
    if (!error.ok()) offer_.Refuse(error.message());
  }
  StartComing(flight, error);
  StartBefore(flight, error);
  StartBehind(flight.get());
  for (const BatchId id : {flight->coming, flight->before, flight->behind}) {
    own_on_host_.push_back(id);
  }
}

// Its limit is NCCL's alone. A GPU that still has other work to do would keep
// those of its peers waiting in the trial.
Status DirectLane::PrepareTrial(Flight* flight) {
  HVD_RETURN_IF_ERROR(TakeBuffer(flight, kNumbers * sizeof(float)));
  DeviceStream* const stream = queue_->stream();
  HVD_RETURN_IF_ERROR(stream->Wait(ready_));
  if (!std::exchange(flight->buffer->is_free, true)) {
    HVD_RETURN_IF_ERROR(stream->CatchUp(ready_));
  }
  auto event = stream->Record(wake_);
  if (event.ok()) flight->comes = std::move(event.value());
  return event.status();
}

// It gets its place in the order of the GPU behind that. On a GPU that is not
// there yet, another set's batch may wait for a peer where it has to go first.
void DirectLane::StartComing(const FlightPtr& flight, const Status& error) {
  const auto nothing = std::make_shared<uint8_t>(uint8_t{0});
  Batch byte = LargestOf(DataType::kUint8, nothing.get());
  byte.local_error = error;
  byte.inputs_are_ready = [flight] { return flight->comes == nullptr; };
  byte.is_long = true;
  flight->coming =
      host_->Start(std::move(byte), [this, flight, nothing](const Status&) {
        // If it has failed, so does what follows.
        if (flight->phase == Phase::kMeeting) Propose(flight.get());
        flight->all_have_come = true;
      });
}

bool DirectLane::ComeToTrial(Flight* flight) {
  if (flight->comes == nullptr) return false;
  const Result<bool> reached = flight->comes->IsReached();
  if (reached.ok() && !reached.value()) return false;
  flight->comes.reset();
  if (!reached.ok()) {
    offer_.Refuse(reached.status().message());
    host_->Cancel(flight->coming, reached.status());
    host_->Cancel(flight->before, reached.status());
  }
  return true;
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

// All GPUs take part, and each sends to the next one.
Status DirectLane::QueueTrial(const Flight& flight) {
  using Kind = CommunicatorCall::Kind;
  has_tried_ = true;
  const std::vector<int> peers = GpuPeers();
  const auto gpus = static_cast<int>(peers.size());
  const auto own = static_cast<int>(
      std::find(peers.begin(), peers.end(), rank()) - peers.begin());
  auto* const numbers = static_cast<float*>(flight.buffer->memory.get());
  CommunicatorCalls calls;
  calls.calls.push_back(
      {Kind::kAllreduce, 0, numbers + kSummed, numbers + kSummed, 1});
  calls.calls.push_back(
      {Kind::kBroadcast, 0, numbers + kTold, numbers + kTold, 1});
  if (gpus > 1) {
    calls.calls.push_back(
        {Kind::kSend, (own + 1) % gpus, numbers + kSent, nullptr, 1});
    calls.calls.push_back({Kind::kReceive, (own + gpus - 1) % gpus, nullptr,
                           numbers + kReceived, 1});
  }
  return communicator_->Launch(calls, queue_->stream());
}

}  // namespace hvd
