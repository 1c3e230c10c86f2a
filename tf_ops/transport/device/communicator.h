// SPDX-License-Identifier: Apache-2.0
// Communicator: GPUs of a set's ranks that work among themselves.
//
// Vendor-free, so that lanes are tested on GPUs that are made up.
#ifndef HVD_TRANSPORT_DEVICE_COMMUNICATOR_H_
#define HVD_TRANSPORT_DEVICE_COMMUNICATOR_H_

#include <memory>
#include <string>

#include "core/status.h"
#include "core/types.h"
#include "transport/device/communicator_calls.h"
#include "transport/device/device.h"

namespace hvd {

// One rank's end. One thread uses it. No call waits for a peer or for the GPU,
// but its destructor does, for some seconds. If it goes, or a peer's does, what
// is under way ends with wrong results.
class Communicator {
 public:
  virtual ~Communicator() = default;

  // Whether it can be given work, and what it was given last is queued on its
  // stream. Not Ok: it is of no use any more.
  virtual Result<bool> IsReady() = 0;

  // Queues the calls, of which there are some, as work of the stream. All ranks
  // make calls that fit together, in the same order. Only once IsReady says so.
  // What is reduced is something that Takes has agreed to.
  virtual Status Launch(const CommunicatorCalls& calls,
                        DeviceStream* stream) = 0;

  // Ends what is under way on this GPU, though peers do not take part. It is
  // of no use any more.
  virtual void Abort() = 0;

  // After Abort: nothing is queued any more. On a GPU that hangs, this is said
  // after some seconds.
  virtual bool IsGone() = 0;
};

// Makes communicators for the GPU of this process.
class Communicators {
 public:
  virtual ~Communicators() = default;

  // What must be known of this rank to decide whether there can be one.
  struct Offer {
    std::string gpu;  // differs between GPUs of any hosts
    int version = 0;  // of the library
  };
  // `ready` is of the GPU. See Segment::ready. Not Ok: this rank has no
  // library, and why.
  virtual Result<Offer> Look(const std::shared_ptr<const void>& ready) = 0;

  // The identity of a new one, for all its ranks.
  virtual Result<std::string> NewId() = 0;

  // This rank's end of it. It is ready once all ranks have come.
  virtual Result<std::unique_ptr<Communicator>> Connect(
      const std::string& id, int rank, int size,
      const std::shared_ptr<const void>& ready) = 0;

  // Whether all can reduce this with exact scales.
  virtual bool Takes(DataType dtype, ReduceOp op, double scale) const = 0;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_COMMUNICATOR_H_
