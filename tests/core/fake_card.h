// SPDX-License-Identifier: Apache-2.0
// FakeCard: a Device that is made up, for tests of lanes without a GPU.
#ifndef HVD_TESTS_CORE_FAKE_CARD_H_
#define HVD_TESTS_CORE_FAKE_CARD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "core/status.h"
#include "transport/device/device.h"

namespace hvd {

// What Segment::ready points to on this card: whether work of a stream that is
// not ours has been done.
struct FakeReady {
  bool is_set = false;
};

// Its memory has addresses that fault when the host touches them. Its streams
// work in Step alone, so nothing is done before a test says so. A copy that
// touches anything but memory of the card and pinned memory fails its stream.
// One thread uses it.
class FakeCard final : public Device {
 public:
  FakeCard();
  ~FakeCard() override;

  Result<std::unique_ptr<DeviceStream>> NewStream() override;
  Result<std::shared_ptr<void>> NewPinned(size_t bytes) override;

  // Memory of the card, filled with poison. It is not null, also for 0 bytes.
  std::shared_ptr<void> Allocate(size_t bytes);
  // What a program's own stream would do. `device` is memory of the card.
  void Write(void* device, const void* host, size_t bytes);
  void Read(void* host, const void* device, size_t bytes) const;

  // Each stream works until nothing is left, or waits for what is not ready.
  void Step();

  // Faults. The next copy of any stream fails, and with it its stream.
  void FailNextCopy() { fails_next_copy_ = true; }
  // No pinned memory is left from now on.
  void RunOutOfPinned() { has_pinned_ = false; }
  // Bytes of pinned memory that were asked for, in all.
  size_t pinned_bytes() const { return pinned_bytes_; }

  // For streams. Null: the host may not use these bytes for a copy.
  void* Reachable(const void* address, size_t bytes) const;
  bool TakeFault() { return std::exchange(fails_next_copy_, false); }
  class Stream;
  void Remove(const Stream* stream);

 private:
  bool IsOnCard(const void* address) const;
  std::byte* ShadowOf(const void* device) const;

  std::byte* card_ = nullptr;    // addresses that fault
  std::byte* shadow_ = nullptr;  // the same memory, for the card's own work
  size_t used_ = 0;
  int allocations_ = 0;
  std::set<std::pair<uintptr_t, uintptr_t>> pinned_;  // begin and end
  std::vector<Stream*> streams_;
  bool fails_next_copy_ = false;
  bool has_pinned_ = true;
  size_t pinned_bytes_ = 0;
};

}  // namespace hvd

#endif  // HVD_TESTS_CORE_FAKE_CARD_H_
