// SPDX-License-Identifier: Apache-2.0
// Device: what a lane needs of a GPU: a stream, its events, pinned memory.
//
// Vendor-free, so that lanes are tested on a GPU that is made up.
#ifndef HVD_TRANSPORT_DEVICE_DEVICE_H_
#define HVD_TRANSPORT_DEVICE_DEVICE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "core/status.h"
#include "core/types.h"
#include "transport/device/copy_table.h"
#include "transport/device/row_sums.h"

namespace hvd {

// What is done with each element that is copied.
struct CopyOperation {
  DataType from = DataType::kFloat32;
  DataType to = DataType::kFloat32;
  // Not 1: both types are floating.
  double scale = 1.0;
};

// How rows are added up. Both types are floating.
struct RowSumOperation {
  DataType from = DataType::kFloat32;
  DataType to = DataType::kFloat32;
  RowSumFactors factors;
};

// A place in the order of a stream's work.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Whether all work before it is done. It does not wait. Not Ok: some of that
  // work has failed, and the stream is of no use any more.
  virtual Result<bool> IsReached() = 0;
};

// Work of a GPU in order. No call waits for it. One thread uses it.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;

  // Ok if `ready` is of this stream's GPU.
  virtual Status CheckGpu(const std::shared_ptr<const void>& ready) const = 0;

  // What is queued later begins once `ready` holds. See Segment::ready.
  virtual Status Wait(const std::shared_ptr<const void>& ready) = 0;

  // Whether `ready` holds by now.
  virtual Result<bool> HasCome(
      const std::shared_ptr<const void>& ready) const = 0;

  // What is queued later begins once the framework's stream has done all that
  // it has been given by now. `ready` is of that stream.
  virtual Status CatchUp(const std::shared_ptr<const void>& ready) = 0;

  // What the framework's streams are given later begins once all that is queued
  // here so far is done. The places are of these streams.
  virtual Status HoldFramework(
      const std::vector<std::shared_ptr<const void>>& places) = 0;

  // Queues copies of bytes between memory of the GPU and pinned memory. It
  // must not go before they are done.
  virtual Status CopyBytes(const std::vector<CopySegment>& copies) = 0;

  // Whether CopyElements and SumRows can be called. Ok, or why not.
  virtual Status CheckKernels() const = 0;

  // Queues copies of elements between memory of the GPU. Each element is
  // multiplied by the scale, and rounded to the other type.
  virtual Status CopyElements(const std::vector<CopySegment>& copies,
                              const CopyOperation& operation) = 0;

  // Queues sums of rows in memory of the GPU.
  virtual Status SumRows(const std::vector<RowSums>& rows,
                         const RowSumOperation& operation) = 0;

  // An event behind all that is queued so far. When it is reached, or the
  // stream has failed, some thread calls `then`, which must not block. Nothing
  // that is queued waits for it.
  virtual Result<std::unique_ptr<DeviceEvent>> Record(
      std::function<void()> then) = 0;
};

// One GPU, as this process uses it. One thread uses it.
class Device {
 public:
  virtual ~Device() = default;

  // A stream of the GPU that `ready` is of. See Segment::ready.
  virtual Result<std::unique_ptr<DeviceStream>> NewStream(
      const std::shared_ptr<const void>& ready) = 0;

  // Memory of the GPU, by the framework's allocator. Streams may use it once
  // they have caught up with `ready`.
  virtual Result<std::shared_ptr<void>> NewBuffer(
      const std::shared_ptr<const void>& ready, size_t bytes) = 0;

  // Host memory that streams can read and write, aligned to 64 bytes. Called
  // after NewStream. It may take long, so pinned memory is kept: see
  // PinnedMemory.
  virtual Result<std::shared_ptr<void>> NewPinned(size_t bytes) = 0;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_DEVICE_H_
