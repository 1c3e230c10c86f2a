// SPDX-License-Identifier: Apache-2.0
// Rings and waits by a futex that processes share.
#include "transport/shm/shm_doorbell.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <utility>

namespace hvd {
namespace {

using std::chrono::microseconds;

void FutexWait(std::atomic<uint32_t>* word, uint32_t expected,
               microseconds limit) {
  timespec time;
  time.tv_sec = static_cast<time_t>(limit.count() / 1000000);
  time.tv_nsec = static_cast<long>(limit.count() % 1000000 * 1000);
  // The call may return early, for a signal, a ring or no reason. So callers
  // look again.
  syscall(SYS_futex, word, FUTEX_WAIT, expected, &time, nullptr, 0);
}

}  // namespace

void Ring(DoorbellWord* word) {
  // All threads see these accesses and those of Wait in one order. So either
  // Wait sees this ring, or this thread sees that the owner sleeps.
  word->rings.fetch_add(1, std::memory_order_seq_cst);
  if (word->sleeping.load(std::memory_order_seq_cst) != 0) {
    syscall(SYS_futex, &word->rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

ShmDoorbell::ShmDoorbell(DoorbellWord* word, std::shared_ptr<void> memory)
    : word_(word), memory_(std::move(memory)) {}

void ShmDoorbell::Wait(microseconds limit, microseconds spin) {
  const auto end = std::chrono::steady_clock::now() + std::min(limit, spin);
  uint32_t rings = word_->rings.load(std::memory_order_acquire);
  while (rings == seen_ && std::chrono::steady_clock::now() < end) {
    sched_yield();
    rings = word_->rings.load(std::memory_order_acquire);
  }
  if (rings == seen_) {
    word_->sleeping.store(1, std::memory_order_seq_cst);
    if (word_->rings.load(std::memory_order_seq_cst) == seen_) {
      FutexWait(&word_->rings, seen_, limit);
    }
    word_->sleeping.store(0, std::memory_order_relaxed);
    rings = word_->rings.load(std::memory_order_acquire);
  }
  seen_ = rings;
}

}  // namespace hvd
