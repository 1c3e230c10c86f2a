// SPDX-License-Identifier: Apache-2.0
// ShmRing: bytes from one process to another, through shared memory.
#ifndef HVD_TRANSPORT_SHM_SHM_RING_H_
#define HVD_TRANSPORT_SHM_SHM_RING_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hvd {

// Lies in shared memory. All zeros: the ring is empty.
struct ShmRingHead {
  alignas(64) std::atomic<uint64_t> written;  // bytes since the start
  alignas(64) std::atomic<uint64_t> read;
  // The writer has found the ring full, and wants its bell rung.
  alignas(64) std::atomic<uint32_t> writer_waits;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// A view of a ring. One thread of one process writes, and one thread of another
// reads. `capacity` is a power of two. After a write or a read, the caller
// rings the other side's bell.
class ShmRing {
 public:
  ShmRing(ShmRingHead* head, std::byte* data, size_t capacity)
      : head_(head), data_(data), capacity_(capacity) {}

  // --- The writer
  size_t writable() const {
    return capacity_ -
           static_cast<size_t>(head_->written.load(std::memory_order_relaxed) -
                               head_->read.load(std::memory_order_acquire));
  }
  // At most writable().
  void Write(const void* bytes, size_t count) {
    const uint64_t at = head_->written.load(std::memory_order_relaxed);
    const size_t start = at & (capacity_ - 1);
    const size_t first = std::min(count, capacity_ - start);
    std::memcpy(data_ + start, bytes, first);
    std::memcpy(data_, static_cast<const std::byte*>(bytes) + first,
                count - first);
    head_->written.store(at + count, std::memory_order_release);
  }
  // Asks the reader to ring the writer's bell when it makes room. False: there
  // is room for `count` bytes now.
  bool WaitForRoom(size_t count) {
    head_->writer_waits.store(1, std::memory_order_seq_cst);
    return capacity_ - static_cast<size_t>(
                           head_->written.load(std::memory_order_relaxed) -
                           head_->read.load(std::memory_order_seq_cst)) <
           count;
  }

  // --- The reader
  // More than the capacity: the head is damaged.
  size_t readable() const {
    return static_cast<size_t>(head_->written.load(std::memory_order_acquire) -
                               head_->read.load(std::memory_order_relaxed));
  }
  bool is_sane() const { return readable() <= capacity_; }
  // At most readable(). True if the writer wants its bell rung.
  [[nodiscard]] bool Read(void* bytes, size_t count) {
    const uint64_t at = head_->read.load(std::memory_order_relaxed);
    const size_t start = at & (capacity_ - 1);
    const size_t first = std::min(count, capacity_ - start);
    std::memcpy(bytes, data_ + start, first);
    std::memcpy(static_cast<std::byte*>(bytes) + first, data_, count - first);
    head_->read.store(at + count, std::memory_order_seq_cst);
    return head_->writer_waits.load(std::memory_order_seq_cst) != 0 &&
           head_->writer_waits.exchange(0, std::memory_order_seq_cst) != 0;
  }

 private:
  ShmRingHead* head_;
  std::byte* data_;
  size_t capacity_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_SHM_SHM_RING_H_
