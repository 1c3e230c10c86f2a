// SPDX-License-Identifier: Apache-2.0
// CommunicatorCalls: a batch as calls of a communicator, which knows no rows.
#ifndef HVD_TRANSPORT_DEVICE_COMMUNICATOR_CALLS_H_
#define HVD_TRANSPORT_DEVICE_COMMUNICATOR_CALLS_H_

#include <cstdint>
#include <vector>

#include "core/rows.h"
#include "core/transport.h"
#include "core/types.h"

namespace hvd {

// What all ranks of a communicator do together, or two of them.
//
// Elements that are read and written, where `count` is this rank's:
//
//   kAllreduce      reads count                       writes count
//   kReducescatter  reads the counts of all ranks     writes count
//   kReduce         reads count                       writes count on `peer`
//   kBroadcast      reads count on `peer`             writes count
//   kAllgather      reads count                       writes those of all ranks
//   kSend           reads count, as `peer` receives   writes nothing
//   kReceive        reads nothing                     writes count, as sent
struct CommunicatorCall {
  enum class Kind : uint8_t {
    kAllreduce,
    kReducescatter,
    kReduce,
    kBroadcast,
    kAllgather,
    kSend,
    kReceive,
  };
  Kind kind = Kind::kAllreduce;
  int peer = 0;  // rank
  const void* in = nullptr;
  void* out = nullptr;
  int64_t count = 0;  // > 0
};

// Calls that are made as one. Sends wait for no receives.
struct CommunicatorCalls {
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double scale = 1.0;  // each input is multiplied by it before, if reduced
  std::vector<CommunicatorCall> calls;
};

// What a sum is divided by, or 1.
double DivisorOf(const Batch& batch, int size);

// Whether anything is multiplied or divided, before or after a reduction.
bool IsScaled(const Batch& batch, int size);

// What inputs of a sum are multiplied by before that.
double ScaleOf(const Batch& batch, int size);

// `outputs` has one for each segment, and `rows` are as Batch::allocate gets
// them, where sizes of outputs differ. What is only moved is moved as bytes.
CommunicatorCalls CallsOf(const Batch& batch, const std::vector<void*>& outputs,
                          const RankCounts& rows, int rank, int size);

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_COMMUNICATOR_CALLS_H_
