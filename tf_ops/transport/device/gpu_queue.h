// SPDX-License-Identifier: Apache-2.0
// GpuQueue: what the lanes of one GPU share, whose communicators use it one
// after another.
#ifndef HVD_TRANSPORT_DEVICE_GPU_QUEUE_H_
#define HVD_TRANSPORT_DEVICE_GPU_QUEUE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "core/status.h"
#include "transport/device/device.h"
#include "transport/device/launch_order.h"
#include "transport/device/pinned_memory.h"

namespace hvd {

// One thread uses it.
class GpuQueue {
 public:
  explicit GpuQueue(std::shared_ptr<Device> device)
      : device_(std::move(device)), pinned_(device_, kKeepPinned) {}

  // The stream of all communicators, which `ready`'s GPU must have. It is made
  // at the first call. See Segment::ready.
  Status OpenStream(const std::shared_ptr<const void>& ready) {
    if (stream_ != nullptr) return stream_->CheckGpu(ready);
    auto made = device_->NewStream(ready);
    if (made.ok()) stream_ = std::move(made.value());
    return made.status();
  }
  DeviceStream* stream() const { return stream_.get(); }

  // Memory of the GPU in which tensors travel together, or that a batch needs
  // otherwise. Batches may share it, because the stream does one after the
  // other.
  struct Buffer {
    std::shared_ptr<void> memory;
    size_t bytes = 0;
    // The stream may use it: what the framework had done with the memory before
    // has ended.
    bool is_free = false;
  };
  // One of at least so many bytes, the last one where that will do.
  Result<std::shared_ptr<Buffer>> BufferOf(
      size_t bytes, const std::shared_ptr<const void>& ready) {
    if (buffer_ != nullptr && buffer_->bytes >= bytes) return buffer_;
    auto memory = device_->NewBuffer(ready, bytes);
    if (!memory.ok()) return memory.status();
    buffer_ = std::make_shared<Buffer>();
    buffer_->memory = std::move(memory.value());
    buffer_->bytes = bytes;
    return buffer_;
  }

  PinnedMemory& pinned() { return pinned_; }
  LaunchOrder& order() { return order_; }

  // To be held from a launch until the GPU has done that work, or never will.
  std::shared_ptr<const void> Work() const { return work_; }
  // Whether the GPU has no work of any set that waits for peers.
  bool is_free() const { return order_.empty() && work_.use_count() == 1; }

  // Whether a set's reason not to use the GPU in this way is news.
  bool IsNews(const std::string& reason) {
    if (reason == last_reason_) return false;
    last_reason_ = reason;
    return true;
  }

 private:
  const std::shared_ptr<Device> device_;
  PinnedMemory pinned_;
  std::unique_ptr<DeviceStream> stream_;
  std::shared_ptr<Buffer> buffer_;
  LaunchOrder order_;
  const std::shared_ptr<const int> work_ = std::make_shared<const int>(0);
  std::string last_reason_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_GPU_QUEUE_H_
