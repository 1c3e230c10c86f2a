// SPDX-License-Identifier: Apache-2.0
// StagingPool: recycled memory that the wire reads and writes.
#ifndef HVD_TRANSPORT_STAGING_POOL_H_
#define HVD_TRANSPORT_STAGING_POOL_H_

#include <cstddef>
#include <map>
#include <memory>

namespace hvd {

struct StagingBuffer {
  std::shared_ptr<std::byte> data;  // null: none
  size_t bytes = 0;
};

// How urgently a chunk needs memory. The oldest batch of a set always gets
// some, so every set goes on, unless the heap has none. Small chunks get memory
// before large ones that can wait, so that they can pass a large batch. Chunks
// that need no memory of this rank do not ask.
enum class Urgency { kCanWait, kSmall, kOldest };

// A chunk up to this size is small.
inline constexpr size_t kSmallStagingBytes = 64 << 10;

// Thread: the owner's.
class StagingPool {
 public:
  virtual ~StagingPool() = default;
  // At least `bytes`, which are not 0, of uninitialised memory that begins at a
  // cache line. A buffer without data: there is no memory now.
  virtual StagingBuffer Take(size_t bytes, Urgency urgency) = 0;
  virtual void Give(StagingBuffer buffer) = 0;
};

// A pool on the heap. Fresh pages cost more than the copy into them. So buffers
// are kept, up to limit_bytes. Chunks that can wait do so while that much is in
// use.
class HeapStagingPool final : public StagingPool {
 public:
  explicit HeapStagingPool(size_t limit_bytes = kDefaultLimitBytes)
      : limit_bytes_(limit_bytes) {}

  StagingBuffer Take(size_t bytes, Urgency urgency) override;
  void Give(StagingBuffer buffer) override;

  size_t kept_bytes() const { return kept_bytes_; }

 private:
  static constexpr size_t kDefaultLimitBytes = 64 << 20;

  const size_t limit_bytes_;
  size_t in_use_bytes_ = 0;  // taken and not given back
  size_t kept_bytes_ = 0;
  std::multimap<size_t, StagingBuffer> kept_;  // by size
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_STAGING_POOL_H_
