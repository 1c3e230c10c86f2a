// SPDX-License-Identifier: Apache-2.0
// StagingPool: memory that the wire reads and writes, recycled.
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

// How much a piece needs memory. The oldest batch of a set always gets some,
// which is what lets every set of ranks go on; small pieces get more than
// others, for they are what passes a large batch.
enum class Urgency { kCanWait, kSmall, kOldest };

// Up to here a piece is small.
inline constexpr size_t kSmallStagingBytes = 64 << 10;

// One thread, the owner's.
class StagingPool {
 public:
  virtual ~StagingPool() = default;
  // At least `bytes` of uninitialised memory that begins at a cache line; none
  // when there is none now.
  virtual StagingBuffer Take(size_t bytes, Urgency urgency) = 0;
  virtual void Give(StagingBuffer buffer) = 0;
};

// Of the process's own memory. Fresh pages cost more than the copy into them,
// so buffers are kept, up to limit_bytes; pieces that can wait do so while that
// much is in use.
class HeapStagingPool final : public StagingPool {
 public:
  explicit HeapStagingPool(size_t limit_bytes = kDefaultLimitBytes)
      : limit_bytes_(limit_bytes) {}

  StagingBuffer Take(size_t bytes, Urgency urgency) override;
  void Give(StagingBuffer buffer) override;

  // Bytes taken and not given back.
  size_t in_use_bytes() const { return in_use_bytes_; }
  size_t kept_bytes() const { return kept_bytes_; }

 private:
  static constexpr size_t kDefaultLimitBytes = 64 << 20;

  const size_t limit_bytes_;
  size_t in_use_bytes_ = 0;
  size_t kept_bytes_ = 0;
  std::multimap<size_t, StagingBuffer> kept_;  // by size
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_STAGING_POOL_H_
