// SPDX-License-Identifier: Apache-2.0
// The part of DirectLane for allreduces whose shards go between hosts.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "transport/device/direct_lane.h"
#include "transport/device/gpu_fusion.h"
#include "transport/device/small_batch.h"

namespace hvd {

GpuShard DirectLane::GpuShardOf(const Flight& flight) const {
  const HostMap& hosts = owner_.hosts;
  const auto own = static_cast<size_t>(rank());
  const auto host = static_cast<size_t>(hosts.host[own]);
  return ShardIn(
      flight.buffer == nullptr ? nullptr : flight.buffer->memory.get(),
      flight.batch, hosts.place[own],
      static_cast<int>(hosts.ranks[host].size()));
}

Status DirectLane::FindMemoryOfShard(Flight* flight) {
  const auto shards = static_cast<int>(decision_.GpuPeers().size());
  HVD_RETURN_IF_ERROR(TakeBuffer(flight, FusionBytes(flight->batch, shards)));
  auto pinned =
      queue_->pinned().Take(static_cast<size_t>(GpuShardOf(*flight).bytes));
  if (!pinned.ok()) return pinned.status();
  flight->pinned = std::move(pinned.value());
  return Status::Ok();
}

void DirectLane::StartTrip(const FlightPtr& flight) {
  const Batch& batch = flight->batch;
  const auto trip = flight->trip = std::make_shared<ShardTrip>();
  void* const shard = flight->pinned.get();
  Batch sums = SmallBatch(Verb::kAllreduce, batch.wire_dtype, shard, shard,
                          static_cast<size_t>(GpuShardOf(*flight).count));
  // The unpacking divides.
  sums.reduce_op =
      batch.reduce_op == ReduceOp::kAverage ? ReduceOp::kSum : batch.reduce_op;
  const HostMap& hosts = owner_.hosts;
  const auto place =
      static_cast<size_t>(hosts.place[static_cast<size_t>(rank())]);
  for (const std::vector<int>& ranks : hosts.ranks) {
    sums.partners.push_back(ranks[place]);
  }
  std::sort(sums.partners.begin(), sums.partners.end());
  sums.segments[0].name = NameOf(batch);
  sums.inputs_are_ready = [trip] { return trip->is_copied; };
  // Blocks of the batch, whose own times are those of its GPU.
  sums.counters = batch.counters;
  const std::shared_ptr<BatchTimes> times = batch.times;
  if (times != nullptr) sums.times = std::make_shared<BatchTimes>();
  const auto end = [this, trip, times,
                    of_sums = sums.times](const Status& status) {
    trip->has_sums = true;
    if (times != nullptr) times->payload_bytes += of_sums->payload_bytes;
    if (status.ok()) return;
    trip->status = status;
    // The other ranks must not wait for this one.
    host_->Cancel(trip->before, status);
  };
  trip->sums = host_->Start(std::move(sums), end);
  Batch number = LargestOf(DataType::kInt64, &trip->place);
  number.segments[0].name = NameOf(batch);
  number.inputs_are_ready = [trip] { return trip->has_place; };
  trip->before = host_->Start(
      std::move(number), [this, flight, trip](const Status& status) {
        trip->is_over = true;
        if (trip->status.ok()) trip->status = status;
        if (!status.ok()) return;
        queue_->order().Settle(flight->proposed, trip->place);
        flight->stage = Stage::kMet;
      });
  to_go_on_.push_back(flight);
}

bool DirectLane::GoOn() {
  bool moved = false;
  for (; !to_go_on_.empty(); to_go_on_.pop_front()) {
    Flight* const flight = to_go_on_.front().get();
    ShardTrip* const trip = flight->trip.get();
    if (!trip->has_sums) break;
    moved = true;
    if (flight->stage != Stage::kBetween || !trip->status.ok()) continue;
    flight->proposed = trip->place = queue_->order().BeginAgain(owner_.set_id);
    trip->has_place = true;
  }
  return moved;
}

bool DirectLane::HandOver(Flight* flight) {
  if (!flight->is_first_half() || !broken().ok()) return false;
  flight->trip->is_copied = true;
  flight->stage = Stage::kBetween;
  return true;
}

bool DirectLane::StepBetween(Flight* flight) {
  const Status& hosts = flight->trip->status;
  if (hosts.ok() && broken().ok()) return false;
  if (flight->status.ok()) flight->status = hosts;
  Leave(flight);
  return true;
}

void DirectLane::LeaveHosts(Flight* flight) {
  const ShardTrip* const trip = flight->trip.get();
  if (trip == nullptr || trip->is_over) return;
  const Status why = flight->status.ok() ? broken() : flight->status;
  if (why.ok()) return;  // this object goes
  host_->Cancel(trip->sums, why);
  host_->Cancel(trip->before, why);
}

Status DirectLane::QueueShardOut(const Flight& flight) {
  const GpuShard shard = GpuShardOf(flight);
  return queue_->stream()->CopyBytes(
      {{shard.begin, flight.pinned.get(), shard.bytes}});
}

Status DirectLane::QueueGather(const Flight& flight) {
  const GpuShard shard = GpuShardOf(flight);
  DeviceStream* const stream = queue_->stream();
  HVD_RETURN_IF_ERROR(
      stream->CopyBytes({{flight.pinned.get(), shard.begin, shard.bytes}}));
  return communicator_->Launch(shard.gather, stream);
}

}  // namespace hvd
