// SPDX-License-Identifier: Apache-2.0
// One memory with two mappings, and queues of work.
#include "fake_card.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <utility>

namespace hvd {
namespace {

constexpr size_t kCardBytes = size_t{1} << 30;
constexpr size_t kAlignment = 256;
constexpr int kPoison = 0xa5;

void Need(bool holds, const char* what) {
  if (holds) return;
  std::perror(what);
  std::abort();
}

class FakeEvent final : public DeviceEvent {
 public:
  struct State {
    bool is_reached = false;
    bool has_failed = false;
  };
  explicit FakeEvent(std::shared_ptr<State> state) : state_(std::move(state)) {}
  Result<bool> IsReached() override {
    if (!state_->is_reached) return false;
    if (state_->has_failed) return Internal("the card failed.");
    return true;
  }

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace

class FakeCard::Stream final : public DeviceStream {
 public:
  explicit Stream(FakeCard* card) : card_(card) {}
  ~Stream() override { card_->Remove(this); }

  Status Wait(const std::shared_ptr<const void>& ready) override {
    queue_.push_back(
        [ready] { return static_cast<const FakeReady*>(ready.get())->is_set; });
    return Status::Ok();
  }

  Status CopyBytes(const std::vector<CopySegment>& copies) override {
    queue_.push_back([this, copies] {
      has_failed_ = has_failed_ || card_->TakeFault();
      for (const CopySegment& copy : copies) Copy(copy);
      return true;
    });
    return Status::Ok();
  }

  Result<std::unique_ptr<DeviceEvent>> Record(
      std::function<void()> then) override {
    const auto state = std::make_shared<FakeEvent::State>();
    queue_.push_back([this, state, then = std::move(then)] {
      *state = {true, has_failed_};
      then();
      return true;
    });
    return std::unique_ptr<DeviceEvent>(std::make_unique<FakeEvent>(state));
  }

  void Work() {
    while (!queue_.empty() && queue_.front()()) queue_.pop_front();
  }

 private:
  void Copy(const CopySegment& copy) {
    const auto bytes = static_cast<size_t>(copy.count);
    if (has_failed_ || bytes == 0) return;
    const void* const from = card_->Reachable(copy.from, bytes);
    void* const to = card_->Reachable(copy.to, bytes);
    has_failed_ = from == nullptr || to == nullptr;
    if (!has_failed_) std::memcpy(to, from, bytes);
  }

  FakeCard* const card_;
  bool has_failed_ = false;
  // Each says whether it is done.
  std::deque<std::function<bool()>> queue_;
};

void FakeCard::Step() {
  for (Stream* stream : streams_) stream->Work();
}

void FakeCard::Remove(const Stream* stream) {
  streams_.erase(std::find(streams_.begin(), streams_.end(), stream));
}

FakeCard::FakeCard() {
  const int file = memfd_create("fake-card", MFD_CLOEXEC);
  Need(file >= 0 && ftruncate(file, kCardBytes) == 0, "memory of a card");
  const auto map = [&](int protection) {
    void* const place =
        mmap(nullptr, kCardBytes, protection, MAP_SHARED, file, 0);
    Need(place != MAP_FAILED, "a mapping of a card");
    return static_cast<std::byte*>(place);
  };
  card_ = map(PROT_NONE);
  shadow_ = map(PROT_READ | PROT_WRITE);
  close(file);
}

FakeCard::~FakeCard() {
  munmap(card_, kCardBytes);
  munmap(shadow_, kCardBytes);
}

Result<std::unique_ptr<DeviceStream>> FakeCard::NewStream() {
  auto stream = std::make_unique<Stream>(this);
  streams_.push_back(stream.get());
  return std::unique_ptr<DeviceStream>(std::move(stream));
}

Result<std::shared_ptr<void>> FakeCard::NewPinned(size_t bytes) {
  if (!has_pinned_) return ResourceExhausted("no pinned memory is left.");
  pinned_bytes_ += bytes;
  void* const block = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  Need(block != nullptr, "pinned memory");
  std::memset(block, kPoison, bytes);
  const auto begin = reinterpret_cast<uintptr_t>(block);
  pinned_.insert({begin, begin + bytes});
  return std::shared_ptr<void>(block, [this, begin, bytes](void* gone) {
    pinned_.erase({begin, begin + bytes});
    std::free(gone);
  });
}

std::shared_ptr<void> FakeCard::Allocate(size_t bytes) {
  void* const place = card_ + used_;
  used_ +=
      std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  Need(used_ <= kCardBytes, "a card with more memory");
  std::memset(ShadowOf(place), kPoison, bytes);
  ++allocations_;
  return std::shared_ptr<void>(place, [this](void*) {
    if (--allocations_ == 0) used_ = 0;
  });
}

void FakeCard::Write(void* device, const void* host, size_t bytes) {
  if (bytes > 0) std::memcpy(ShadowOf(device), host, bytes);
}

void FakeCard::Read(void* host, const void* device, size_t bytes) const {
  if (bytes > 0) std::memcpy(host, ShadowOf(device), bytes);
}

bool FakeCard::IsOnCard(const void* address) const {
  const auto* const at = static_cast<const std::byte*>(address);
  return at >= card_ && at < card_ + kCardBytes;
}

std::byte* FakeCard::ShadowOf(const void* device) const {
  Need(IsOnCard(device), "memory of the card");
  return shadow_ + (static_cast<const std::byte*>(device) - card_);
}

void* FakeCard::Reachable(const void* address, size_t bytes) const {
  if (IsOnCard(address)) return ShadowOf(address);
  const auto begin = reinterpret_cast<uintptr_t>(address);
  for (const auto& [first, end] : pinned_) {
    if (begin >= first && begin + bytes <= end) {
      return const_cast<void*>(address);
    }
  }
  return nullptr;
}

}  // namespace hvd
