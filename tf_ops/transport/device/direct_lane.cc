// SPDX-License-Identifier: Apache-2.0
// Batches of a communicator: the byte before them, the launch, and the end.
#include "transport/device/direct_lane.h"

#include <algorithm>
#include <utility>

#include "core/batch_times.h"

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
                       std::unique_ptr<Communicators> communicators,
                       std::function<void()> wake, LaneOwner owner,
                       std::chrono::milliseconds connect_limit)
    : host_(host),
      wake_(std::move(wake)),
      device_(device),
      communicators_(std::move(communicators)),
      owner_(std::move(owner)),
      connect_limit_(connect_limit),
      staging_(host, device, wake_),
      self_(std::make_shared<DirectLane*>(this)) {}

DirectLane::~DirectLane() {
  *self_ = nullptr;
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

double DirectLane::ScaleOf(const Batch& batch, int size) {
  const double divisor =
      batch.reduce_op != ReduceOp::kAverage
          ? 1.0
          : static_cast<double>(batch.divisor > 0 ? batch.divisor : size);
  return batch.prescale * batch.postscale / divisor;
}

// Everything here is the same on all ranks.
bool DirectLane::IsForCards(const Batch& batch) const {
  return state_ == State::kDirect && batch.verb == Verb::kAllreduce &&
         !batch.has_absent && batch.wire_dtype == batch.dtype &&
         communicators_->Takes(batch.dtype, batch.reduce_op,
                               ScaleOf(batch, size()));
}

Status DirectLane::CheckCards(const Batch& batch) const {
  HVD_RETURN_IF_ERROR(batch.local_error);
  HVD_RETURN_IF_ERROR(broken_);
  for (const Segment& segment : batch.segments) {
    if (segment.count == 0) continue;
    if (segment.ready == nullptr) {
      return Internal("a tensor on a GPU has no stream.");
    }
    HVD_RETURN_IF_ERROR(stream_->CheckCard(segment.ready));
  }
  return Status::Ok();
}

void DirectLane::StartFlight(BatchId id, Batch batch, BatchDone done) {
  const auto flight = std::make_shared<Flight>();
  flights_[id] = flight;
  flight->scale = ScaleOf(batch, size());
  flight->done = std::move(done);
  Batch byte;
  byte.verb = Verb::kAllreduce;
  byte.dtype = byte.wire_dtype = DataType::kUint8;
  byte.reduce_op = ReduceOp::kMax;
  byte.local_error = CheckCards(batch);
  const auto value = std::make_shared<uint8_t>(uint8_t{0});
  Segment& segment = byte.segments.emplace_back();
  segment.in = segment.out = value.get();
  segment.count = segment.rows = 1;
  segment.name = batch.segments.empty() ? nullptr : batch.segments[0].name;
  flight->batch = std::move(batch);
  flight->host_id =
      host_->Start(std::move(byte), [flight, value](const Status& status) {
        flight->phase = status.ok() ? Phase::kMet : Phase::kOver;
        if (flight->status.ok()) flight->status = status;
      });
}

bool DirectLane::Progress() {
  bool moved = Advance();
  EndWithMember();
  std::vector<FlightPtr> ended;
  bool is_first = true;
  for (auto at = flights_.begin(); at != flights_.end();) {
    const FlightPtr flight = at->second;
    moved |= Step(flight.get(), is_first);
    // The cards must be given batches in one order.
    is_first &= flight->phase >= Phase::kRunning;
    if (IsOver(flight.get())) {
      ended.push_back(flight);
      at = flights_.erase(at);
    } else {
      ++at;
    }
  }
  moved |= staging_.Progress();
  // These come last, because they may start and cancel batches.
  for (const FlightPtr& flight : ended) flight->done(flight->status);
  return moved || !ended.empty();
}

bool DirectLane::Step(Flight* flight, bool is_first) {
  switch (flight->phase) {
    case Phase::kMet:
      if (broken_.ok()) return is_first && Launch(flight);
      flight->phase = Phase::kOver;
      return true;
    case Phase::kLaunched:
      return Record(flight);
    case Phase::kRunning: {
      const Result<bool> reached = flight->finished->IsReached();
      if (reached.ok() && !reached.value()) return false;
      if (!reached.ok() && flight->status.ok()) {
        flight->status = reached.status();
      }
      flight->phase = Phase::kOver;
      return true;
    }
    default:
      return false;
  }
}

bool DirectLane::Launch(Flight* flight) {
  const Result<bool> is_ready = communicator_->IsReady();
  if (!is_ready.ok()) {
    Break(is_ready.status());
    return true;
  }
  if (!is_ready.value()) return true;  // in a moment
  std::vector<CopySegment> tensors;
  Status status;
  for (const Segment& segment : flight->batch.segments) {
    if (segment.count == 0) continue;
    if (status.ok()) status = stream_->Wait(segment.ready);
    tensors.push_back({segment.in, segment.out, segment.count});
  }
  if (status.ok() && !tensors.empty()) {
    status = communicator_->Allreduce(tensors, flight->batch.dtype,
                                      flight->batch.reduce_op, flight->scale,
                                      stream_.get());
  }
  flight->phase = Phase::kLaunched;
  if (BatchTimes* const times = flight->batch.times.get()) {
    times->among_cards = true;
    times->first_in_ns = times->packed_ns = SteadyNow_ns();
  }
  // Peers wait for this card.
  if (!status.ok()) Break(status);
  return true;
}

// What is queued behind a kernel that is not queued yet would not wait for it.
bool DirectLane::Record(Flight* flight) {
  if (broken_.ok()) {
    const Result<bool> is_queued = communicator_->IsReady();
    if (!is_queued.ok()) Break(is_queued.status());
    if (is_queued.ok() && !is_queued.value()) return true;  // in a moment
  }
  auto event = stream_->Record(wake_);
  if (event.ok()) {
    flight->finished = std::move(event.value());
    flight->phase = Phase::kRunning;
    return true;
  }
  Break(event.status());
  flight->phase = Phase::kOver;
  return true;
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
  broken_ = why;
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
  if (flight->status.ok()) flight->status = why;
  // Its peers may have come to it, and would wait for this card.
  if (why.code() != StatusCode::kPeerLost) return;
  Break(why);
  if (flight->phase == Phase::kMeeting) host_->Cancel(flight->host_id, why);
  (void)Step(flight.get(), false);
  if (!IsOver(flight.get())) return;  // the card is at it; Progress ends it
  flights_.erase(id);
  flight->done(flight->status);
}

int DirectLane::in_flight() const {
  return staging_.in_flight() +
         static_cast<int>(std::count_if(
             flights_.begin(), flights_.end(), [](const auto& one) {
               return one.second->phase != Phase::kMeeting;
             }));
}

int DirectLane::count_of(BatchId id) const {
  const auto staged = staged_.find(id);
  if (staged != staged_.end()) return staging_.count_of(staged->second);
  return static_cast<int>(flights_.count(id));
}

}  // namespace hvd
