// SPDX-License-Identifier: Apache-2.0
// The part of DirectLane for allreduces whose shards go between hosts.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "transport/device/direct_lane.h"
#include "transport/device/gpu_fusion.h"
#include "transport/device/small_batch.h"

namespace hvd {

GpuShard DirectLane::ShardOf(const Flight& flight) const {
  const HostMap& hosts = owner_.hosts;
  const auto own = static_cast<size_t>(rank());
  const auto host = static_cast<size_t>(hosts.host[own]);
  return ShardIn(
      flight.buffer == nullptr ? nullptr : flight.buffer->memory.get(),
      flight.batch, hosts.place[own],
      static_cast<int>(hosts.ranks[host].size()));
}

Status DirectLane::FindMemoryOfShard(Flight* flight) {
  const auto shards = static_cast<int>(GpuPeers().size());
  HVD_RETURN_IF_ERROR(TakeBuffer(flight, FusionBytes(flight->batch, shards)));
  auto pinned =
      queue_->pinned().Take(static_cast<size_t>(ShardOf(*flight).bytes));
  if (!pinned.ok()) return pinned.status();
  flight->pinned = std::move(pinned.value());
  return Status::Ok();
}

void DirectLane::StartHop(const FlightPtr& flight) {
  const Batch& batch = flight->batch;
  const auto hop = flight->hop = std::make_shared<Hop>();
  void* const shard = flight->pinned.get();
  Batch sums = SmallBatch(Verb::kAllreduce, batch.wire_dtype, shard, shard,
                          static_cast<size_t>(ShardOf(*flight).count));
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
  sums.inputs_are_ready = [hop] { return hop->is_copied; };
  hop->sums = host_->Start(std::move(sums), [this, hop](const Status& status) {
    hop->has_sums = true;
    if (status.ok()) return;
    hop->status = status;
    // The other ranks must not wait for this one.
    host_->Cancel(hop->before, status);
  });
  Batch number = LargestOf(DataType::kInt64, &hop->place);
  number.segments[0].name = NameOf(batch);
  number.inputs_are_ready = [hop] { return hop->has_place; };
  hop->before = host_->Start(
      std::move(number), [this, flight, hop](const Status& status) {
        hop->is_over = true;
        if (hop->status.ok()) hop->status = status;
        if (!status.ok()) return;
        queue_->order().Settle(flight->proposed, hop->place);
        flight->phase = Phase::kMet;
      });
  to_go_on_.push_back(flight);
}

bool DirectLane::GoOn() {
  bool moved = false;
  for (; !to_go_on_.empty(); to_go_on_.pop_front()) {
    Flight* const flight = to_go_on_.front().get();
    Hop* const hop = flight->hop.get();
    if (!hop->has_sums) break;
    moved = true;
    if (flight->phase != Phase::kBetween || !hop->status.ok()) continue;
    flight->proposed = hop->place = queue_->order().BeginAgain(owner_.set_id);
    hop->has_place = true;
  }
  return moved;
}

bool DirectLane::HandOver(Flight* flight) {
  if (!IsFirstHalf(*flight) || !broken_.ok()) return false;
  flight->hop->is_copied = true;
  flight->phase = Phase::kBetween;
  return true;
}

bool DirectLane::StepBetween(Flight* flight) {
  const Status& hosts = flight->hop->status;
  if (hosts.ok() && broken_.ok()) return false;
  if (flight->status.ok()) flight->status = hosts;
  Leave(flight);
  return true;
}

void DirectLane::LeaveHosts(Flight* flight) {
  const Hop* const hop = flight->hop.get();
  if (hop == nullptr || hop->is_over) return;
  const Status why = flight->status.ok() ? broken_ : flight->status;
  if (why.ok()) return;  // this object goes
  host_->Cancel(hop->sums, why);
  host_->Cancel(hop->before, why);
}

Status DirectLane::QueueShardOut(const Flight& flight) {
  const GpuShard shard = ShardOf(flight);
  return queue_->stream()->CopyBytes(
      {{shard.begin, flight.pinned.get(), shard.bytes}});
}

Status DirectLane::QueueGather(const Flight& flight) {
  const GpuShard shard = ShardOf(flight);
  DeviceStream* const stream = queue_->stream();
  HVD_RETURN_IF_ERROR(
      stream->CopyBytes({{flight.pinned.get(), shard.begin, shard.bytes}}));
  return communicator_->Launch(shard.gather, stream);
}

}  // namespace hvd
