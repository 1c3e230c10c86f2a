// SPDX-License-Identifier: Apache-2.0
// DirectLane: batches in GPUs' memory that the GPUs reduce among themselves.
#ifndef HVD_TRANSPORT_DEVICE_DIRECT_LANE_H_
#define HVD_TRANSPORT_DEVICE_DIRECT_LANE_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "core/lanes.h"
#include "core/transport.h"
#include "transport/device/communicator.h"
#include "transport/device/device.h"
#include "transport/device/flight.h"
#include "transport/device/gpu_fusion.h"
#include "transport/device/gpu_queue.h"
#include "transport/device/host_staging.h"
#include "transport/device/lane_decision.h"
#include "transport/device/watched_communicator.h"

namespace hvd {

// It starts as HostStaging. Meanwhile its ranks decide: see LaneDecision. If
// they come to have a communicator, batches that it can do go through it from
// there on. If it cannot be had, all stays as it was.
//
// A batch of the communicator has a number on the host transport that goes
// before it, at the batch's place in the order. So a rank that cannot take part
// says so in time, and no GPU waits for a rank that has not come to the batch.
// The number also puts the batches of all sets in one order: see LaunchOrder. A
// byte on the host transport goes behind each batch. So no rank's communicator
// goes while a peer's GPU still uses it.
//
// Where the owner is hierarchical, there is a communicator for each host, and
// an allreduce is launched twice. First the GPUs of a host add up, each a
// shard. The host transport adds up the hosts' shards. Then the GPUs of a host
// tell each other the results. What is no allreduce of floats is staged.
//
// Other than the contract says, a batch that is cancelled is done when the
// peers' GPUs have done with it, unless a peer is lost. Then the communicator
// is aborted. Progress of the host transport is the owner's to call.
class DirectLane final : public Transport {
 public:
  // `host` outlives this object. `wake` is called by any thread when a GPU has
  // done something, so that Progress is called.
  // A communicator that is not ready after `connect_limit` is given up, and so
  // is one that has not begun a batch by then. All lanes of the GPU have the
  // same `queue`.
  DirectLane(Transport* host, std::shared_ptr<Device> device,
             std::shared_ptr<GpuQueue> queue,
             std::unique_ptr<Communicators> communicators,
             std::function<void()> wake, LaneOwner owner,
             std::chrono::milliseconds connect_limit);
  ~DirectLane() override;

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  bool within_host() const override { return host_->within_host(); }
  BatchId Start(Batch batch, BatchDone done) override;
  bool Progress() override;
  void Cancel(BatchId id, const Status& why) override;
  void Meet(bool all_came) override;
  void MemberEnded(const Status& why, bool has_failed) override;
  void Close(const Status& why) override;
  int in_flight() const override;
  int own_in_flight() const override { return decision_.own_in_flight(); }
  int count_of(BatchId id) const override;
  std::vector<BatchId> with_gpu() const override;
  bool waits_for_own_gpu(BatchId id) const override;

  bool is_direct() const { return communicator_ != nullptr; }

 private:
  using Clock = std::chrono::steady_clock;
  using Stage = Flight::Stage;

  // --- Batches of the communicator ---
  bool IsForGpus(const Batch& batch) const;
  Status CheckGpus(const Batch& batch) const;
  // The memory that the flight needs, as far as it is known before sizes are.
  Status FindBuffer(Flight* flight);
  // Gives outputs that are null, of so many bytes, a place.
  Status PlaceUnwanted(Flight* flight, const std::vector<int64_t>& bytes,
                       std::vector<void*>* outputs);
  Status TakeBuffer(Flight* flight, int64_t bytes);
  void StartFlight(BatchId id, Batch batch, BatchDone done);
  // `error`: why this rank cannot take part.
  void StartSizes(const FlightPtr& flight, const Status& error);
  void StartIds(const FlightPtr& flight, const Status& error);
  void StartBefore(const FlightPtr& flight, const Status& error);
  void Propose(Flight* flight);
  void StartBehind(Flight* flight);
  // Once sizes are known. True if they have got known.
  bool FindOutputs(Flight* flight);
  Status AllocateOutputs(Flight* flight);
  Status FindMemoryOfRows(Flight* flight);
  // Moves a flight on.
  bool Step(Flight* flight);
  // Gives up what was launched too long ago. True if it has.
  bool WatchLimit(const Flight& flight);
  bool Launch(Flight* flight);
  // Gives the batch to the communicator, behind what it waits for.
  Status Queue(Flight* flight);
  Status QueueRows(const GpuRows& rows);
  // Behind what the communicator was given.
  Status QueueOutputs(const Flight& flight);
  bool Record(Flight* flight);
  // See LaneOwner::completes_in_stream.
  void HoldFramework(Flight* flight);

  // --- Allreduces by host, whose shards go between the hosts ---
  GpuShard GpuShardOf(const Flight& flight) const;
  Status FindMemoryOfShard(Flight* flight);
  void StartTrip(const FlightPtr& flight);
  Status QueueShardOut(const Flight& flight);
  // The GPU has done with the first half. True: the hosts have its shard.
  bool HandOver(Flight* flight);
  // Proposes places for second launches, in the order of Start.
  bool GoOn();
  bool StepBetween(Flight* flight);
  Status QueueGather(const Flight& flight);
  // Gives up what hosts still have to do.
  void LeaveHosts(Flight* flight);

  // --- Ends ---
  // The flight has no more to do with the GPU.
  void Leave(Flight* flight);
  bool IsOver(Flight* flight);
  // Fails what is left, when its time has come.
  void EndWithMember();
  // See WatchedCommunicator. To be asked when this lane is direct.
  const Status& broken() const { return communicator_->broken(); }

  Transport* const host_;
  const std::function<void()> wake_;
  const std::shared_ptr<GpuQueue> queue_;
  const std::unique_ptr<Communicators> communicators_;
  const LaneOwner owner_;
  const std::chrono::milliseconds connect_limit_;
  HostStaging staging_;
  LaneDecision decision_;
  // Null: all batches are staged. It connects the GPUs of all ranks, or of the
  // ranks of this host.
  std::unique_ptr<WatchedCommunicator> communicator_;
  // Not Ok: a member has ended, and what is left fails at that time.
  Status member_end_;
  Clock::time_point end_at_;

  BatchId next_id_ = 1;
  std::map<BatchId, BatchId> staged_;     // ours, and that of staging_
  std::map<BatchId, FlightPtr> flights_;  // in the order of Start
  // Those with a trip whose second launch has no place, in that order.
  std::deque<FlightPtr> to_go_on_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_DIRECT_LANE_H_
