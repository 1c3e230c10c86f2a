// SPDX-License-Identifier: Apache-2.0
// StagingPool: memory that the wire reads and writes, recycled.
#ifndef HVD_TRANSPORT_STAGING_POOL_H_
#define HVD_TRANSPORT_STAGING_POOL_H_

#include <cstddef>
#include <map>
#include <memory>

namespace hvd {

struct StagingBuffer {
  std::unique_ptr<std::byte[]> data;  // null: none
  size_t bytes = 0;
};

// Fresh pages cost more than the copy into them, so buffers are kept, up to
// kept_limit_bytes. One thread, the owner's.
class StagingPool {
 public:
  explicit StagingPool(size_t kept_limit_bytes)
      : kept_limit_bytes_(kept_limit_bytes) {}

  // At least `bytes` of uninitialised memory; none when there is no memory.
  StagingBuffer Take(size_t bytes);
  void Give(StagingBuffer buffer);

  // Bytes taken and not given back.
  size_t in_use_bytes() const { return in_use_bytes_; }
  size_t kept_bytes() const { return kept_bytes_; }

 private:
  const size_t kept_limit_bytes_;
  size_t in_use_bytes_ = 0;
  size_t kept_bytes_ = 0;
  std::multimap<size_t, StagingBuffer> kept_;  // by size
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_STAGING_POOL_H_
