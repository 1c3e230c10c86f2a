// SPDX-License-Identifier: Apache-2.0
// GpuFusion: the tensors of an allreduce side by side in one buffer of the
// GPU, scaled and converted on the way there and back.
#ifndef HVD_TRANSPORT_DEVICE_GPU_FUSION_H_
#define HVD_TRANSPORT_DEVICE_GPU_FUSION_H_

#include <cstdint>
#include <vector>

#include "core/transport.h"
#include "transport/device/communicator_calls.h"
#include "transport/device/copy_table.h"
#include "transport/device/device.h"

namespace hvd {

// Whether an allreduce is worth the copies, or needs them: it has several
// tensors, or a scale, or another type crosses the wire. The same on all ranks.
bool IsFused(const Batch& batch, int size);

// Bytes of the buffer, which is cut into so many equal shards.
int64_t FusionBytes(const Batch& batch, int shards = 1);

// What is to be done with a buffer of so many bytes. Between its tensors it has
// bytes that nobody reads.
struct GpuFusion {
  std::vector<CopySegment> in, out;
  CopyOperation pack, unpack;
  CommunicatorCalls calls;
};
GpuFusion FuseInto(void* buffer, const Batch& batch, int size);

// A shard of the buffer, which one of `shards` GPUs owns. First the GPUs add
// up: `scatter` brings each GPU its shard. Then it goes elsewhere and comes
// back. Then `gather` brings all GPUs all shards.
struct GpuShard {
  void* begin = nullptr;
  int64_t count = 0;  // elements of the wire's type
  int64_t bytes = 0;
  CommunicatorCalls scatter, gather;
};
GpuShard ShardIn(void* buffer, const Batch& batch, int shard, int shards);

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_GPU_FUSION_H_
