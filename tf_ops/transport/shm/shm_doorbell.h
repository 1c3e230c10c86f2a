// SPDX-License-Identifier: Apache-2.0
// ShmDoorbell: a doorbell that other processes of the host can ring.
#ifndef HVD_TRANSPORT_SHM_SHM_DOORBELL_H_
#define HVD_TRANSPORT_SHM_SHM_DOORBELL_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "core/doorbell.h"

namespace hvd {

// Lies in shared memory. All zeros: the bell was never rung.
struct alignas(64) DoorbellWord {
  std::atomic<uint32_t> rings;
  std::atomic<uint32_t> sleeping;  // its owner may be in the kernel
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Any process and thread.
void Ring(DoorbellWord* word);

// One rank's own bell. Wait spins, then sleeps on a futex.
class ShmDoorbell final : public Doorbell {
 public:
  // `memory` keeps the memory of the word.
  ShmDoorbell(DoorbellWord* word, std::shared_ptr<void> memory);
  void Ring() override { hvd::Ring(word_); }
  void Wait(std::chrono::microseconds limit,
            std::chrono::microseconds spin) override;

 private:
  DoorbellWord* const word_;
  const std::shared_ptr<void> memory_;
  uint32_t seen_ = 0;  // rings at the end of the last Wait
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_SHM_SHM_DOORBELL_H_
