// SPDX-License-Identifier: Apache-2.0
// Batches of a communicator, step by step: the launch, and what the GPU says.
#include "transport/device/direct_lane.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/batch_times.h"
#include "transport/device/communicator_calls.h"
#include "transport/device/gpu_fusion.h"
#include "transport/device/small_batch.h"

namespace hvd {

DirectLane::DirectLane(Transport* host, std::shared_ptr<Device> device,
                       std::shared_ptr<GpuQueue> queue,
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
      decision_(host, queue_, communicators_.get(), wake_, &owner_,
                connect_limit) {}

DirectLane::~DirectLane() {
  // Other sets do not wait for what ends here.
  for (const auto& [id, flight] : flights_) Leave(flight.get());
  // Before the memory that its kernels use goes.
  communicator_.reset();
  // To free it could wait for kernels of other sets.
  queue_->pinned().TakeOver(&staging_.pinned());
}

void DirectLane::Close(const Status& why) {
  if (communicator_ != nullptr && !flights_.empty()) communicator_->Break(why);
}

BatchId DirectLane::Start(Batch batch, BatchDone done) {
  const BatchId id = next_id_++;
  if (communicator_ == nullptr) decision_.Notice(batch);
  if (IsForGpus(batch)) {
    StartFlight(id, std::move(batch), std::move(done));
    return id;
  }
  staged_[id] = 0;
  // A transport does not call done from Start.
  staged_[id] =
      staging_.Start(std::move(batch),
                     [this, id, done = std::move(done)](const Status& status) {
                       staged_.erase(id);
                       done(status);
                     });
  return id;
}

void DirectLane::Meet(bool all_came) {
  decision_.Meet(all_came);
  if (communicator_ == nullptr) communicator_ = decision_.Take();
}

void DirectLane::Leave(Flight* flight) {
  flight->stage = Stage::kOver;
  *flight->is_left = true;
  flight->work.reset();
  queue_->order().End(flight->proposed);
  LeaveHosts(flight);
}

bool DirectLane::Progress() {
  bool moved = GoOn();
  EndWithMember();
  moved |= decision_.Advance();
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
  // FreeOne may wait until a GPU has done its work, so the GPU must have none.
  const bool is_gpu_free = flights_.empty() && !decision_.uses_gpu() &&
                           queue_->is_free() &&
                           (communicator_ == nullptr || broken().ok());
  if (is_gpu_free) {
    staging_.pinned().FreeOne();
    queue_->pinned().FreeOne();
  }
  // These come last, because they may start and cancel batches.
  for (const auto& [done, status] : calls) done(status);
  return moved || !calls.empty();
}

bool DirectLane::Step(Flight* flight) {
  switch (flight->stage) {
    case Stage::kMeeting:
      return FindOutputs(flight);
    case Stage::kMet:
      if (broken().ok()) {
        return queue_->order().IsNext(flight->proposed) && Launch(flight);
      }
      Leave(flight);
      return true;
    case Stage::kLaunched:
      return Record(flight);
    case Stage::kRunning: {
      const Result<bool> reached = flight->finished->IsReached();
      if (reached.ok() && !reached.value()) return communicator_->HasFailed();
      flight->work.reset();
      if (!reached.ok() && flight->status.ok()) {
        flight->status = reached.status();
        // Who was told that it is done hears of it by the next one.
        if (flight->is_held_for) communicator_->Break(reached.status());
      }
      if (reached.ok() && HandOver(flight)) return true;
      Leave(flight);
      return true;
    }
    case Stage::kBetween:
      return StepBetween(flight);
    default:
      return false;
  }
}

bool DirectLane::WatchLimit(const Flight& flight) {
  if (!broken().ok()) return false;
  if (Clock::now() < flight.launched_at + connect_limit_) return false;
  communicator_->Break(
      decision_.LimitReached("NCCL did not begin a batch", connect_limit_));
  return true;
}

bool DirectLane::Launch(Flight* flight) {
  if (communicator_->IsQueueing()) return true;  // in a moment
  if (!broken().ok()) return true;
  queue_->order().Launch(flight->proposed);
  flight->work = queue_->Work();
  const bool is_second = flight->is_second_half();
  const Status status = is_second ? QueueGather(*flight) : Queue(flight);
  flight->launched_at = Clock::now();
  flight->stage = Stage::kLaunched;
  BatchTimes* const times = flight->batch.times.get();
  if (times != nullptr && !is_second) {
    times->among_gpus = true;
    times->first_in_ns = times->packed_ns = SteadyNow_ns();
  }
  // Peers wait for this GPU.
  if (!status.ok()) communicator_->Break(status);
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
    const GpuFusion fusion =
        FuseInto(flight->buffer->memory.get(), batch, size());
    HVD_RETURN_IF_ERROR(stream->CopyElements(fusion.in, fusion.pack));
    return communicator_->Launch(
        flight->is_first_half() ? GpuShardOf(*flight).scatter : fusion.calls,
        stream);
  }
  const FlightSizes none;
  const FlightSizes& sizes = flight->sizes == nullptr ? none : *flight->sizes;
  HVD_RETURN_IF_ERROR(sizes.status);
  if (sizes.gpu_rows != nullptr) return QueueRows(*sizes.gpu_rows);
  const CommunicatorCalls calls =
      CallsOf(batch, sizes.outputs, sizes.rows, rank(), size());
  return calls.calls.empty() ? Status::Ok()
                             : communicator_->Launch(calls, stream);
}

Status DirectLane::QueueRows(const GpuRows& rows) {
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
  if (!broken().ok()) return Status::Ok();
  if (flight.sizes != nullptr && flight.sizes->gpu_rows != nullptr) {
    const RowWork& sums = flight.sizes->gpu_rows->sums();
    return queue_->stream()->SumRows(sums.rows, sums.operation);
  }
  if (!flight.is_fused) return Status::Ok();
  if (flight.is_first_half()) return QueueShardOut(flight);
  const GpuFusion fusion =
      FuseInto(flight.buffer->memory.get(), flight.batch, size());
  return queue_->stream()->CopyElements(fusion.out, fusion.unpack);
}

bool DirectLane::Record(Flight* flight) {
  if (communicator_->IsQueueing() && !WatchLimit(*flight)) {
    return WatchedCommunicator::IsQueuedSoon(flight->launched_at);
  }
  if (communicator_->IsGoing()) return false;
  if (const Status status = QueueOutputs(*flight); !status.ok()) {
    communicator_->Break(status);
  }
  auto event = queue_->stream()->Record(wake_);
  if (event.ok()) {
    flight->finished = std::move(event.value());
    flight->stage = Stage::kRunning;
    if (owner_.completes_in_stream && !flight->is_first_half()) {
      HoldFramework(flight);
    }
    // The GPU keeps the order from here on.
    queue_->order().End(flight->proposed);
    return true;
  }
  communicator_->Break(event.status());
  Leave(flight);
  return true;
}

void DirectLane::HoldFramework(Flight* flight) {
  if (!flight->status.ok() || !broken().ok()) return;
  std::vector<std::shared_ptr<const void>> places;
  for (const Segment& segment : flight->batch.segments) {
    if (segment.ready != nullptr) places.push_back(segment.ready);
  }
  // Else it is done when the GPU has done it.
  flight->is_held_for = queue_->stream()->HoldFramework(places).ok();
}

std::vector<BatchId> DirectLane::with_gpu() const {
  std::vector<BatchId> found;
  const std::vector<BatchId> copied = staging_.with_gpu();
  for (const auto& [id, staged] : staged_) {
    if (std::binary_search(copied.begin(), copied.end(), staged)) {
      found.push_back(id);
    }
  }
  for (const auto& [id, flight] : flights_) {
    const bool is_there =
        flight->stage == Stage::kLaunched || flight->stage == Stage::kRunning;
    if (is_there) found.push_back(id);
  }
  std::sort(found.begin(), found.end());
  return found;
}

bool DirectLane::waits_for_own_gpu(BatchId id) const {
  const auto found = flights_.find(id);
  if (found == flights_.end()) return true;  // it is staged
  const std::vector<Segment>& segments = found->second->batch.segments;
  return std::any_of(
      segments.begin(), segments.end(), [this](const Segment& segment) {
        if (segment.ready == nullptr) return false;
        const Result<bool> has_come = queue_->stream()->HasCome(segment.ready);
        return has_come.ok() && !has_come.value();
      });
}

}  // namespace hvd
