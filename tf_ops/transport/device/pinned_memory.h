// SPDX-License-Identifier: Apache-2.0
// PinnedMemory: keeps a card's pinned memory for the next batch.
#ifndef HVD_TRANSPORT_DEVICE_PINNED_MEMORY_H_
#define HVD_TRANSPORT_DEVICE_PINNED_MEMORY_H_

#include <cstddef>
#include <map>
#include <memory>

#include "core/status.h"
#include "transport/device/device.h"

namespace hvd {

// Gives blocks whose sizes are powers of two. A block that comes back is given
// out again. What lies unused is at most `most_kept` bytes, beyond which blocks
// are freed.
//
// One thread uses it, and lets go of its blocks.
class PinnedMemory {
 public:
  PinnedMemory(std::shared_ptr<Device> device, size_t most_kept);

  // At least so many bytes, which is not 0. They come back when the last
  // pointer goes, even if this object has gone before.
  Result<std::shared_ptr<std::byte>> Take(size_t bytes);

  size_t kept_bytes() const { return unused_->bytes; }

 private:
  struct Unused {
    size_t most_bytes = 0;
    size_t bytes = 0;
    std::multimap<size_t, std::shared_ptr<void>> blocks;  // by size
  };

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Unused> unused_ = std::make_shared<Unused>();
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_PINNED_MEMORY_H_
