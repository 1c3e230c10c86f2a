// SPDX-License-Identifier: Apache-2.0
// PinnedMemory: keeps a GPU's pinned memory for the next batch.
#ifndef HVD_TRANSPORT_DEVICE_PINNED_MEMORY_H_
#define HVD_TRANSPORT_DEVICE_PINNED_MEMORY_H_

#include <chrono>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>

#include "core/status.h"
#include "transport/device/device.h"

namespace hvd {

// Pinned memory that nobody has needed for so long is freed: longer than a step
// takes, and than a validation between two of them.
inline constexpr std::chrono::minutes kKeepPinned{2};

// Gives blocks of some sizes only: powers of two, and between large ones seven
// more. A block that comes back is given out again. A job's steps need the same
// memory again and again, and a driver takes long to find it and to free it. So
// what lies unused is freed only when nobody has needed it for some time, a
// block at a time.
//
// One thread uses it, and lets go of its blocks.
class PinnedMemory {
 public:
  using Clock = std::chrono::steady_clock;

  PinnedMemory(std::shared_ptr<Device> device, Clock::duration keep_for);

  // At least so many bytes, which is not 0. They come back when the last
  // pointer goes, even if this object has gone before.
  Result<std::shared_ptr<std::byte>> Take(size_t bytes);

  // Frees a block that nobody has needed for so long, if there is one. A driver
  // waits for that until the GPU has done its work. So the GPU must have none
  // that waits for peers, whose failures this thread could not hear of.
  void FreeOne();

  // Gets all blocks that the other one keeps.
  void TakeOver(PinnedMemory* other);

  size_t kept_bytes() const { return unused_->bytes; }

 private:
  struct Block {
    std::shared_ptr<void> memory;
    Clock::time_point since;  // it lies unused
  };
  struct Unused {
    size_t bytes = 0;
    // By size. The last one that came back is the first to be given out, so the
    // first ones are those that nobody needs.
    std::map<size_t, std::deque<Block>> blocks;
  };

  Result<std::shared_ptr<void>> Find(size_t size);

  const std::shared_ptr<Device> device_;
  const Clock::duration keep_for_;
  const std::shared_ptr<Unused> unused_ = std::make_shared<Unused>();
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_PINNED_MEMORY_H_
