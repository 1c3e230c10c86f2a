// SPDX-License-Identifier: Apache-2.0
// LaneTrial: the meeting, the calls, and what the GPU says.
#include "transport/device/lane_trial.h"

#include <cstdint>
#include <utility>

#include "transport/device/communicator_calls.h"
#include "transport/device/small_batch.h"

namespace hvd {
namespace {

// One number for each use.
constexpr int kSummed = 0, kTold = 1, kSent = 2, kReceived = 3, kNumbers = 4;

}  // namespace

LaneTrial::LaneTrial(Setup setup) : setup_(std::move(setup)) {
  meeting_->order = &setup_.queue->order();
  meeting_->set_id = setup_.set_id;
}

void LaneTrial::Meeting::Leave() {
  stage = Stage::kOver;
  is_left = true;
  work.reset();
  order->End(proposed);
}

// The trial's limit of time is for NCCL alone. A GPU that still has other work
// to do would keep those of its peers waiting in the trial.
Status LaneTrial::Prepare() {
  auto buffer = setup_.queue->BufferOf(kNumbers * sizeof(float), setup_.ready);
  if (!buffer.ok()) return buffer.status();
  buffer_ = std::move(buffer.value());
  DeviceStream* const stream = setup_.queue->stream();
  HVD_RETURN_IF_ERROR(stream->Wait(setup_.ready));
  if (!std::exchange(buffer_->is_free, true)) {
    HVD_RETURN_IF_ERROR(stream->CatchUp(setup_.ready));
  }
  auto event = stream->Record(setup_.wake);
  if (!event.ok()) return event.status();
  comes_ = std::move(event.value());
  meeting_->has_come = false;
  return Status::Ok();
}

void LaneTrial::Start(const Status& error) {
  StartComing(error);
  StartBefore(error);
  StartBehind();
}

void LaneTrial::StartComing(const Status& error) {
  const auto nothing = std::make_shared<uint8_t>(uint8_t{0});
  Batch byte = LargestOf(DataType::kUint8, nothing.get());
  byte.local_error = error;
  byte.inputs_are_ready = [meeting = meeting_] { return meeting->has_come; };
  byte.is_long = true;
  coming_ = setup_.host->Start(
      std::move(byte), [meeting = meeting_, nothing](const Status&) {
        // If it has failed, so does what follows.
        if (meeting->stage == Stage::kMeeting) {
          meeting->proposed = meeting->order->Begin(meeting->set_id);
          meeting->place = meeting->proposed;
        }
        meeting->all_have_come = true;
      });
}

void LaneTrial::StartBefore(const Status& error) {
  Batch number = LargestOf(DataType::kInt64, &meeting_->place);
  number.local_error = error;
  number.inputs_are_ready = [meeting = meeting_] {
    return meeting->all_have_come;
  };
  number.is_long = true;
  before_ = setup_.host->Start(
      std::move(number), [meeting = meeting_](const Status& status) {
        if (meeting->status.ok()) meeting->status = status;
        if (!status.ok()) return meeting->Leave();
        meeting->order->Settle(meeting->proposed, meeting->place);
        meeting->stage = Stage::kMet;
      });
}

void LaneTrial::StartBehind() {
  const auto nothing = std::make_shared<uint8_t>(uint8_t{0});
  Batch byte = LargestOf(DataType::kUint8, nothing.get());
  byte.inputs_are_ready = [meeting = meeting_] { return meeting->is_left; };
  // A peer's may hang when this GPU's is over.
  byte.is_long = true;
  behind_ = setup_.host->Start(std::move(byte), [nothing](const Status&) {});
}

int LaneTrial::host_batches() const {
  return 1 + (meeting_->stage == Stage::kMeeting ? 1 : 0) +
         (meeting_->all_have_come ? 0 : 1);
}

bool LaneTrial::Advance() {
  switch (meeting_->stage) {
    case Stage::kMeeting:
      return Come();
    case Stage::kMet:
      if (setup_.communicator->broken().ok()) {
        return setup_.queue->order().IsNext(meeting_->proposed) && Launch();
      }
      Leave();
      return true;
    case Stage::kLaunched:
      return Record();
    case Stage::kRunning:
      return AwaitEnd();
    case Stage::kOver:
      return false;
  }
  return false;
}

bool LaneTrial::Come() {
  if (comes_ == nullptr) return false;
  const Result<bool> reached = comes_->IsReached();
  if (reached.ok() && !reached.value()) return false;
  comes_.reset();
  meeting_->has_come = true;
  if (!reached.ok()) {
    own_failure_ = reached.status();
    setup_.host->Cancel(coming_, own_failure_);
    setup_.host->Cancel(before_, own_failure_);
  }
  return true;
}

bool LaneTrial::Launch() {
  WatchedCommunicator* const communicator = setup_.communicator;
  if (communicator->IsQueueing()) return true;  // in a moment
  if (!communicator->broken().ok()) return true;
  setup_.queue->order().Launch(meeting_->proposed);
  meeting_->work = setup_.queue->Work();
  const Status status = Queue();
  launched_at_ = Clock::now();
  meeting_->stage = Stage::kLaunched;
  // Peers wait for this GPU.
  if (!status.ok()) communicator->Break(status);
  return true;
}

// All GPUs take part, and each sends to the next one.
Status LaneTrial::Queue() {
  using Kind = CommunicatorCall::Kind;
  was_launched_ = true;
  const int own = setup_.place, gpus = setup_.gpus;
  auto* const numbers = static_cast<float*>(buffer_->memory.get());
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
  return setup_.communicator->Launch(calls, setup_.queue->stream());
}

bool LaneTrial::Record() {
  WatchedCommunicator* const communicator = setup_.communicator;
  if (communicator->IsQueueing() && !PassLimit()) {
    return WatchedCommunicator::IsQueuedSoon(launched_at_);
  }
  if (communicator->IsGoing()) return false;
  auto event = setup_.queue->stream()->Record(setup_.wake);
  if (!event.ok()) {
    communicator->Break(event.status());
    Leave();
    return true;
  }
  finished_ = std::move(event.value());
  meeting_->stage = Stage::kRunning;
  // The GPU keeps the order from here on.
  setup_.queue->order().End(meeting_->proposed);
  return true;
}

bool LaneTrial::AwaitEnd() {
  const Result<bool> reached = finished_->IsReached();
  if (reached.ok() && !reached.value()) {
    return setup_.communicator->HasFailed() || PassLimit();
  }
  if (meeting_->status.ok()) meeting_->status = reached.status();
  Leave();
  return true;
}

bool LaneTrial::PassLimit() {
  if (!setup_.communicator->broken().ok()) return false;
  if (Clock::now() < launched_at_ + setup_.limit) return false;
  was_too_late_ = true;
  setup_.communicator->Break(setup_.too_late);
  return true;
}

void LaneTrial::EndWithMember(const Status& why) {
  // The host transport's own peers tell it.
  if (meeting_->stage == Stage::kMeeting) return;
  setup_.communicator->Break(why);
  if (meeting_->status.ok()) meeting_->status = why;
}

const Status& LaneTrial::status() const {
  if (!own_failure_.ok()) return own_failure_;
  return meeting_->status.ok() ? setup_.communicator->broken()
                               : meeting_->status;
}

bool LaneTrial::is_guess() const {
  return own_failure_.ok() && (!was_launched_ || was_too_late_);
}

bool LaneTrial::is_told_by_peer() const {
  return own_failure_.ok() && !was_launched_ && !meeting_->status.ok();
}

}  // namespace hvd
