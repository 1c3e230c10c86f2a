// SPDX-License-Identifier: Apache-2.0
// ShmArena: one rank's staging memory, in the memory that its host shares.
#ifndef HVD_TRANSPORT_SHM_SHM_ARENA_H_
#define HVD_TRANSPORT_SHM_SHM_ARENA_H_

#include <cstddef>
#include <map>
#include <memory>
#include <optional>

#include "transport/staging_pool.h"

namespace hvd {

// Memory that is shared with peers, of a fixed size. What process sets reserve
// comes from its end, and chunks from its beginning. Chunks that can wait leave
// a quarter of what is not reserved to small chunks. Thread: the rank's
// background thread.
class ShmArena final : public StagingPool {
 public:
  // `owner` keeps the memory, for the pool and for buffers that outlive it.
  ShmArena(std::byte* data, size_t bytes, std::shared_ptr<void> owner);

  StagingBuffer Take(size_t bytes, Urgency urgency) override;
  void Give(StagingBuffer buffer) override;

  // The reserve of a process set. Give takes it back. None: there is no room
  // between the other reserves. Without data: chunks are in the way. From then
  // on Take gives nothing, so that they go away. It lasts until Reserve has
  // succeeded, or StopWaiting is called. Meanwhile each set has its reserve.
  std::optional<StagingBuffer> Reserve(size_t bytes);
  void StopWaiting() { is_waited_for_ = false; }

 private:
  std::byte* const data_;
  const size_t bytes_;
  const std::shared_ptr<void> owner_;
  size_t free_bytes_;
  // Offset -> bytes. Neighbours are merged.
  std::map<size_t, size_t> free_;
  std::map<size_t, size_t> reserved_;
  size_t reserved_bytes_ = 0;
  bool is_waited_for_ = false;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_SHM_SHM_ARENA_H_
