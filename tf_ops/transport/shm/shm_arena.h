// SPDX-License-Identifier: Apache-2.0
// ShmArena: one rank's staging memory, in the memory that its host shares.
#ifndef HVD_TRANSPORT_SHM_SHM_ARENA_H_
#define HVD_TRANSPORT_SHM_SHM_ARENA_H_

#include <cstddef>
#include <map>
#include <memory>

#include "transport/staging_pool.h"

namespace hvd {

// It has a fixed size. Chunks that can wait leave a quarter of it to small
// chunks. Thread: the rank's background thread.
class ShmArena final : public StagingPool {
 public:
  // `owner` keeps the memory, for the pool and for buffers that outlive it.
  ShmArena(std::byte* data, size_t bytes, std::shared_ptr<void> owner);

  StagingBuffer Take(size_t bytes, Urgency urgency) override;
  void Give(StagingBuffer buffer) override;

  size_t free_bytes() const { return free_bytes_; }

 private:
  std::byte* const data_;
  const size_t bytes_;
  const std::shared_ptr<void> owner_;
  size_t free_bytes_;
  std::map<size_t, size_t> free_;  // offset -> bytes; neighbours are merged
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_SHM_SHM_ARENA_H_
