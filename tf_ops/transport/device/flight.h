// SPDX-License-Identifier: Apache-2.0
// Flight: a batch that GPUs do among themselves, on its way through a lane.
#ifndef HVD_TRANSPORT_DEVICE_FLIGHT_H_
#define HVD_TRANSPORT_DEVICE_FLIGHT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/rows.h"
#include "core/transport.h"
#include "transport/device/device.h"
#include "transport/device/gpu_queue.h"
#include "transport/device/gpu_rows.h"

namespace hvd {

// The way of a shard between the hosts.
struct ShardTrip {
  // On the host transport: the sums, and what goes before the second launch.
  BatchId sums = 0, before = 0;
  bool is_copied = false;  // the shard is in pinned memory
  bool has_sums = false;   // or failed
  // The place of the second launch: first what this rank proposes, in the end
  // the largest proposal.
  LaunchOrder::Place place = 0;
  bool has_place = false;
  bool is_over = false;  // the second launch may come, or never will
  Status status;         // not Ok: it never will
};

// How many rows outputs have, where nobody knows that before.
struct FlightSizes {
  std::vector<int64_t> sent, received;
  // A sparse allreduce has these, because ranks tell each other ids and not
  // numbers of rows. Null: it is another verb.
  std::shared_ptr<GpuRows> gpu_rows;
  BatchId host_id = 0;
  bool is_known = false;  // or failed
  bool has_outputs = false;
  Status status;
  // See CallsOf.
  RankCounts rows;
  std::vector<void*> outputs;
};

// Owner: a DirectLane. The host transport's batches share it. What they do at
// their end needs the lane, so the host transport ends none after that has
// gone: it only drops them. Background thread only.
struct Flight {
  enum class Stage {
    kMeeting,   // its number is on the host transport
    kMet,       // to be launched in its turn
    kLaunched,  // given to the communicator, maybe not yet to the GPU
    kRunning,   // the GPU has it
    kBetween,   // its shard is with the hosts; it is launched again
    kOver,
  };

  // Of an allreduce by host, which is launched twice.
  bool is_first_half() const { return trip != nullptr && !trip->is_copied; }
  bool is_second_half() const { return trip != nullptr && trip->is_copied; }
  // How many it has on the host transport.
  int host_batches() const {
    const bool has_sizes = sizes != nullptr && !sizes->is_known;
    int of_trip = 0;
    if (trip != nullptr) of_trip = !trip->has_sums + !trip->is_over;
    return 1 + (stage == Stage::kMeeting ? 1 : 0) + (has_sizes ? 1 : 0) +
           of_trip;
  }

  Batch batch;
  // Memory of the GPU for tensors that travel together, for rows, or for
  // outputs that nobody wants. Null: none is needed.
  std::shared_ptr<GpuQueue::Buffer> buffer;
  std::shared_ptr<std::byte> pinned;
  bool is_fused = false;            // tensors travel together
  std::shared_ptr<ShardTrip> trip;  // null: its GPUs need no hosts
  BatchDone done;                   // null: it was called
  // The framework's streams wait for it, so it can be called.
  bool is_held_for = false;
  std::shared_ptr<FlightSizes> sizes;  // null: they are known
  Stage stage = Stage::kMeeting;
  LaunchOrder::Place proposed = 0;
  LaunchOrder::Place place = 0;  // the largest proposal, in the end
  // What goes before it and behind it, on the host transport.
  BatchId before = 0, behind = 0;
  // This GPU has done with it, or will never have to do with it.
  std::shared_ptr<bool> is_left = std::make_shared<bool>(false);
  std::chrono::steady_clock::time_point launched_at;
  std::shared_ptr<const void> work;  // see GpuQueue::Work
  std::unique_ptr<DeviceEvent> finished;
  // Not Ok: the batch has failed, or was cancelled.
  Status status;
};
using FlightPtr = std::shared_ptr<Flight>;

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_FLIGHT_H_
