// SPDX-License-Identifier: Apache-2.0
// Batches of a communicator: what goes before them, the launch, and the end.
#include "transport/device/direct_lane.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/batch_times.h"
#include "transport/device/card_fusion.h"
#include "transport/device/communicator_calls.h"
#include "transport/device/small_batch.h"

namespace hvd {
namespace {

// A communicator that fails does not say because of whom. The runtime soon
// does, if a peer has gone. After that it is a failure of its own.
constexpr std::chrono::seconds kUntilAPeerIsNamed{5};

// Longer than a rank that leaves serves what it has started. One that failed
// may serve nothing. What its card was given completes in less.
constexpr std::chrono::seconds kAfterAnEnd{6}, kAfterAFailure{1};

}  // namespace

DirectLane::DirectLane(Transport* host, std::shared_ptr<Device> device,
                       std::shared_ptr<CardQueue> queue,
                       std::unique_ptr<Communicators> communicators,
                       std::function<void()> wake, LaneOwner owner,
                       std::chrono::milliseconds connect_limit)
    : host_(host),
      wake_(std::move(wake)),
      queue_(std::move(queue)),
      communicators_(std::move(communicators)),
      owner_(std::move(owner)),
      connect_limit_(connect_limit),
      staging_(host, std::move(device), wake_),
      self_(std::make_shared<DirectLane*>(this)) {}

DirectLane::~DirectLane() {
  *self_ = nullptr;
  // Other sets do not wait for what ends here.
  for (const auto& [id, flight] : flights_) Leave(flight.get());
  // Before the memory that its kernels use goes.
  communicator_.reset();
}

BatchId DirectLane::Start(Batch batch, BatchDone done) {
  const BatchId id = next_id_++;
  AskToMeet(batch);
  if (IsForCards(batch)) {
    StartFlight(id, std::move(batch), std::move(done));
    return id;
  }
  staged_[id] = 0;
  staged_[id] =
      staging_.Start(std::move(batch),
                     [this, id, done = std::move(done)](const Status& status) {
                       staged_.erase(id);
                       done(status);
                     });
  return id;
}

void DirectLane::Leave(Flight* flight) {
  flight->phase = Phase::kOver;
  *flight->is_left = true;
  queue_->order().End(flight->proposed);
  LeaveHosts(flight);
}

bool DirectLane::Progress() {
  bool moved = Advance();
  moved |= GoOn();
  EndWithMember();
  std::vector<std::pair<BatchDone, Status>> calls;
  for (auto at = flights_.begin(); at != flights_.end();) {
    const FlightPtr flight = at->second;
    moved |= Step(flight.get());
    const bool is_over = IsOver(flight.get());
    if ((is_over || flight->is_held_for) && flight->done) {
      calls.emplace_back(std::exchange(flight->done, nullptr), flight->status);
    }
    at = is_over ? flights_.erase(at) : std::next(at);
  }
  moved |= staging_.Progress();
  // It may wait until a card has done its work, so the card must have none.
  if (flights_.empty() && broken_.ok()) staging_.FreeUnused();
  // These come last, because they may start and cancel batches.
  for (const auto& [done, status] : calls) done(status);
  return moved || !calls.empty();
}

bool DirectLane::Step(Flight* flight) {
  switch (flight->phase) {
    case Phase::kMeeting:
      return FindOutputs(flight);
    case Phase::kMet:
      if (broken_.ok()) {
        return queue_->order().IsNext(flight->proposed) && Launch(flight);
      }
      Leave(flight);
      return true;
    case Phase::kLaunched:
      return Record(flight);
    case Phase::kRunning: {
      const Result<bool> reached = flight->finished->IsReached();
      if (reached.ok() && !reached.value()) return Watch();
      if (!reached.ok() && flight->status.ok()) {
        flight->status = reached.status();
        // Who was told that it is done hears of it by the next one.
        if (flight->is_held_for) Break(reached.status());
      }
      if (reached.ok() && HandOver(flight)) return true;
      Leave(flight);
      return true;
    }
    case Phase::kBetween:
      return StepBetween(flight);
    default:
      return false;
  }
}

bool DirectLane::Watch() {
  if (!broken_.ok()) return false;
  const Result<bool> is_ready = communicator_->IsReady();
  if (!is_ready.ok()) Break(is_ready.status());
  return !is_ready.ok();
}

bool DirectLane::Launch(Flight* flight) {
  const Result<bool> is_ready = communicator_->IsReady();
  if (!is_ready.ok()) {
    Break(is_ready.status());
    return true;
  }
  if (!is_ready.value()) return true;  // in a moment
  queue_->order().Launch(flight->proposed);
  const bool is_second = IsSecondHalf(*flight);
  const Status status = is_second ? QueueGather(*flight) : Queue(flight);
  flight->phase = Phase::kLaunched;
  BatchTimes* const times = flight->batch.times.get();
  if (times != nullptr && !is_second) {
    times->among_cards = true;
    times->first_in_ns = times->packed_ns = SteadyNow_ns();
  }
  // Peers wait for this card.
  if (!status.ok()) Break(status);
  return true;
}

Status DirectLane::Queue(Flight* flight) {
  const Batch& batch = flight->batch;
  DeviceStream* const stream = queue_->stream();
  const std::shared_ptr<const void> ready = ReadyOf(batch);
  for (const Segment& segment : batch.segments) {
    if (segment.count == 0) continue;
    HVD_RETURN_IF_ERROR(stream->Wait(segment.ready));
  }
  // The framework's stream may still have to do with memory that it gave.
  const bool has_new_buffer = flight->buffer != nullptr &&
                              !std::exchange(flight->buffer->is_free, true);
  if ((has_new_buffer || flight->sizes != nullptr) && ready != nullptr) {
    HVD_RETURN_IF_ERROR(stream->CatchUp(ready));
  }
  if (flight->is_fused) {
    const CardFusion fusion =
        FuseInto(flight->buffer->memory.get(), batch, size());
    HVD_RETURN_IF_ERROR(stream->CopyElements(fusion.in, fusion.pack));
    return communicator_->Launch(
        IsFirstHalf(*flight) ? ShardOf(*flight).scatter : fusion.calls, stream);
  }
  const Sizes none;
  const Sizes& sizes = flight->sizes == nullptr ? none : *flight->sizes;
  HVD_RETURN_IF_ERROR(sizes.status);
  if (sizes.card_rows != nullptr) return QueueRows(*sizes.card_rows);
  const CommunicatorCalls calls =
      CallsOf(batch, sizes.outputs, sizes.rows, rank(), size());
  return calls.calls.empty() ? Status::Ok()
                             : communicator_->Launch(calls, stream);
}

Status DirectLane::QueueRows(const CardRows& rows) {
  DeviceStream* const stream = queue_->stream();
  HVD_RETURN_IF_ERROR(stream->CopyBytes(rows.terms()));
  HVD_RETURN_IF_ERROR(
      stream->CopyElements(rows.copies(), rows.copy_operation()));
  for (const RowWork& work : rows.own_sums()) {
    HVD_RETURN_IF_ERROR(stream->SumRows(work.rows, work.operation));
  }
  return rows.calls().calls.empty()
             ? Status::Ok()
             : communicator_->Launch(rows.calls(), stream);
}

Status DirectLane::QueueOutputs(const Flight& flight) {
  if (!broken_.ok()) return Status::Ok();
  if (flight.sizes != nullptr && flight.sizes->card_rows != nullptr) {
    const RowWork& sums = flight.sizes->card_rows->sums();
    return queue_->stream()->SumRows(sums.rows, sums.operation);
  }
  if (!flight.is_fused) return Status::Ok();
  if (IsFirstHalf(flight)) return QueueShardOut(flight);
  const CardFusion fusion =
      FuseInto(flight.buffer->memory.get(), flight.batch, size());
  return queue_->stream()->CopyElements(fusion.out, fusion.unpack);
}

// What is queued behind a kernel that is not queued yet would not wait for it.
bool DirectLane::Record(Flight* flight) {
  if (broken_.ok()) {
    const Result<bool> is_queued = communicator_->IsReady();
    if (!is_queued.ok()) Break(is_queued.status());
    if (is_queued.ok() && !is_queued.value()) return true;  // in a moment
  }
  // Till then it may still be queued, on memory that the batch would give back.
  if (!broken_.ok() && !communicator_->IsGone()) return true;
  if (const Status status = QueueOutputs(*flight); !status.ok()) Break(status);
  auto event = queue_->stream()->Record(wake_);
  if (event.ok()) {
    flight->finished = std::move(event.value());
    flight->phase = Phase::kRunning;
    if (owner_.completes_in_stream && !IsFirstHalf(*flight)) {
      HoldFramework(flight);
    }
    // The card keeps the order from here on.
    queue_->order().End(flight->proposed);
    return true;
  }
  Break(event.status());
  Leave(flight);
  return true;
}

void DirectLane::HoldFramework(Flight* flight) {
  if (!flight->status.ok() || !broken_.ok()) return;
  std::vector<std::shared_ptr<const void>> places;
  for (const Segment& segment : flight->batch.segments) {
    if (segment.ready != nullptr) places.push_back(segment.ready);
  }
  // Else it is done when the card has done it.
  flight->is_held_for = queue_->stream()->HoldFramework(places).ok();
}

bool DirectLane::IsOver(Flight* flight) {
  if (flight->phase != Phase::kOver) return false;
  if (broken_.ok() || !flight->status.ok()) return true;
  // Cancel may bring the name of a peer that is lost.
  if (Clock::now() < broken_at_ + kUntilAPeerIsNamed) return false;
  flight->status = broken_;
  return true;
}

void DirectLane::Break(const Status& why) {
  if (!broken_.ok()) return;
  // Peers wait for this card, whatever the reason is. So it is one that ends
  // the rank.
  broken_ = why.code() == StatusCode::kPeerLost ? why : Internal(why.message());
  broken_at_ = Clock::now();
  if (communicator_ != nullptr) communicator_->Abort();
}

void DirectLane::MemberEnded(const Status& why, bool has_failed) {
  const Clock::time_point at =
      Clock::now() + (has_failed ? kAfterAFailure : kAfterAnEnd);
  if (!member_end_.ok() && end_at_ <= at) return;
  member_end_ = why;
  end_at_ = at;
}

void DirectLane::EndWithMember() {
  if (member_end_.ok() || Clock::now() < end_at_) return;
  for (const auto& [id, flight] : flights_) {
    // The host transport's own peers tell it.
    if (flight->phase == Phase::kMeeting) continue;
    Break(member_end_);
    if (flight->status.ok()) flight->status = member_end_;
  }
}

void DirectLane::Cancel(BatchId id, const Status& why) {
  const auto staged = staged_.find(id);
  if (staged != staged_.end()) return staging_.Cancel(staged->second, why);
  const auto found = flights_.find(id);
  if (found == flights_.end()) return;
  const FlightPtr flight = found->second;
  if (!flight->done) return;  // it is done for the caller
  if (flight->status.ok()) flight->status = why;
  const bool is_lost = why.code() == StatusCode::kPeerLost;
  // Its peers may have come to it, and would wait for this card.
  const bool has_come = flight->sizes == nullptr || flight->sizes->has_outputs;
  if (has_come && !is_lost) return;
  if (is_lost) Break(why);
  if (flight->sizes != nullptr) host_->Cancel(flight->sizes->host_id, why);
  if (flight->phase == Phase::kMeeting) host_->Cancel(flight->before, why);
  if (is_lost) host_->Cancel(flight->behind, why);
  // What was not launched is not going to be.
  (void)Step(flight.get());
  if (!IsOver(flight.get())) return;  // the card is at it; Progress ends it
  flights_.erase(id);
  const BatchDone done = std::exchange(flight->done, nullptr);
  done(flight->status);
}

// The host transport counts what goes before and behind a batch, which counts
// once.
int DirectLane::in_flight() const {
  int count = staging_.in_flight();
  for (const auto& [id, flight] : flights_) count -= HostBatches(*flight) - 1;
  return count;
}

int DirectLane::count_of(BatchId id) const {
  const auto staged = staged_.find(id);
  if (staged != staged_.end()) return staging_.count_of(staged->second);
  const auto found = flights_.find(id);
  return found == flights_.end() ? 0 : HostBatches(*found->second);
}

int DirectLane::HostBatches(const Flight& flight) {
  const bool sizes = flight.sizes != nullptr && !flight.sizes->is_known;
  int hop = 0;
  if (flight.hop != nullptr) hop = !flight.hop->has_sums + !flight.hop->is_over;
  return 1 + (flight.phase == Phase::kMeeting ? 1 : 0) + (sizes ? 1 : 0) + hop;
}

}  // namespace hvd
