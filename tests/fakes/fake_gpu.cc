// SPDX-License-Identifier: Apache-2.0
// One memory with two mappings, and queues of work.
#include "fake_gpu.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace hvd {
namespace {

constexpr size_t kAlignment = 256;  // as TensorFlow wants it, on the host too
constexpr int kPoison = 0xa5;

void Need(bool holds, const char* what) {
  if (holds) return;
  std::perror(what);
  std::abort();
}

size_t RoundUp(size_t bytes, size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

FakeGpu::FakeGpu(size_t bytes) : bytes_(bytes) {
  const int file = memfd_create("fake-gpu", MFD_CLOEXEC);
  Need(file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0,
       "memory of a GPU");
  const auto map = [&](int protection) {
    void* const place = mmap(nullptr, bytes, protection, MAP_SHARED, file, 0);
    Need(place != MAP_FAILED, "a mapping of a GPU");
    return static_cast<std::byte*>(place);
  };
  gpu_ = map(PROT_NONE);
  shadow_ = map(PROT_READ | PROT_WRITE);
  close(file);
}

FakeGpu::~FakeGpu() {
  {
    const Lock lock(mutex_);
    is_ending_ = true;
  }
  has_work_.notify_all();
  if (worker_.joinable()) worker_.join();
  munmap(gpu_, bytes_);
  munmap(shadow_, bytes_);
}

// --- Memory ---

void* FakeGpu::Allocate(size_t bytes) {
  const size_t size = std::max(kAlignment, RoundUp(bytes, kAlignment));
  const Lock lock(mutex_);
  size_t begin = 0;
  for (const auto& [used, end] : used_) {
    if (used - begin >= size) break;
    begin = end;
  }
  if (begin + size > bytes_) return nullptr;
  used_[begin] = begin + size;
  std::memset(shadow_ + begin, kPoison, size);
  return gpu_ + begin;
}

void FakeGpu::Free(void* device) {
  const Lock lock(mutex_);
  Need(used_.erase(
           static_cast<size_t>(static_cast<std::byte*>(device) - gpu_)) == 1,
       "memory that was allocated");
}

void* FakeGpu::AllocatePinned(size_t bytes) {
  const Lock lock(mutex_);
  if (!has_pinned_) return nullptr;
  pinned_bytes_ += bytes;
  void* const block =
      std::aligned_alloc(kAlignment, RoundUp(bytes, kAlignment));
  Need(block != nullptr, "pinned memory");
  std::memset(block, kPoison, bytes);
  const auto begin = reinterpret_cast<uintptr_t>(block);
  pinned_[begin] = begin + bytes;
  return block;
}

void FakeGpu::FreePinned(void* host) {
  const Lock lock(mutex_);
  Need(pinned_.erase(reinterpret_cast<uintptr_t>(host)) == 1,
       "pinned memory that was allocated");
  std::free(host);
}

void FakeGpu::Write(void* device, const void* host, size_t bytes) {
  if (bytes > 0) std::memcpy(ShadowOf(device), host, bytes);
}

void FakeGpu::Read(void* host, const void* device, size_t bytes) const {
  if (bytes > 0) std::memcpy(host, ShadowOf(device), bytes);
}

bool FakeGpu::IsOnGpu(const void* address) const {
  const auto* const at = static_cast<const std::byte*>(address);
  return at >= gpu_ && at < gpu_ + bytes_;
}

std::byte* FakeGpu::ShadowOf(const void* device) const {
  Need(IsOnGpu(device), "memory of the GPU");
  return shadow_ + (static_cast<const std::byte*>(device) - gpu_);
}

void* FakeGpu::Reachable(const void* address, size_t bytes) const {
  if (IsOnGpu(address)) return ShadowOf(address);
  const auto begin = reinterpret_cast<uintptr_t>(address);
  auto block = pinned_.upper_bound(begin);
  if (block == pinned_.begin()) return nullptr;
  --block;
  if (begin + bytes > block->second) return nullptr;
  return const_cast<void*>(address);
}

// --- Streams ---

FakeGpu::Stream* FakeGpu::NewStream() {
  const Lock lock(mutex_);
  return streams_.emplace_back(std::make_unique<Stream>(this)).get();
}

void FakeGpu::Delete(Stream* stream) {
  const Lock lock(mutex_);
  stream->is_deleted_ = true;
}

void FakeGpu::Queue(Stream* stream, Work work) {
  {
    const Lock lock(mutex_);
    stream->queue_.push_back(std::move(work));
    ++queued_;
    if (is_idle_) due_ = Clock::now();
    is_idle_ = false;
  }
  has_work_.notify_all();
}

void FakeGpu::QueueCopy(Stream* stream, void* to, const void* from,
                        size_t bytes, bool is_of_any_memory) {
  Queue(stream, [=] {
    Copy(stream, to, from, bytes, is_of_any_memory);
    return true;
  });
}

void FakeGpu::Copy(Stream* stream, void* to, const void* from, size_t bytes,
                   bool is_of_any_memory) {
  void* target = nullptr;
  const void* source = nullptr;
  {
    const Lock lock(mutex_);
    stream->has_failed_ |= std::exchange(fails_next_copy_, false);
    source = Reachable(from, bytes);
    target = Reachable(to, bytes);
    if (is_of_any_memory && source == nullptr) source = from;
    if (is_of_any_memory && target == nullptr) target = to;
    stream->has_failed_ |= source == nullptr || target == nullptr;
    if (stream->has_failed_) return;
  }
  std::memcpy(target, source, bytes);
}

FakeGpu::PointPtr FakeGpu::Record(Stream* stream) {
  auto point = std::make_shared<Point>();
  Queue(stream, [this, stream, point] {
    const Lock lock(mutex_);
    *point = {true, stream->has_failed_};
    return true;
  });
  return point;
}

void FakeGpu::QueueWait(Stream* stream, PointPtr point) {
  if (point == nullptr) return;
  Queue(stream, [this, point = std::move(point)] {
    const Lock lock(mutex_);
    return point->is_reached;
  });
}

void FakeGpu::QueueCall(Stream* stream,
                        std::function<void(bool has_failed)> call) {
  // What a call owns must not be lost with a GPU that does not come to it.
  struct Once {
    std::function<void(bool has_failed)> call;
    ~Once() {
      if (call) call(true);
    }
  };
  const auto once = std::make_shared<Once>();
  once->call = std::move(call);
  Queue(stream, [this, stream, once] {
    bool has_failed = false;
    {
      const Lock lock(mutex_);
      has_failed = stream->has_failed_;
    }
    std::exchange(once->call, nullptr)(has_failed);
    return true;
  });
}

FakeGpu::Point FakeGpu::Look(const PointPtr& point) const {
  const Lock lock(mutex_);
  return *point;
}

bool FakeGpu::DoWork(Stream* stream, Lock* lock) {
  bool moved = false;
  while (!stream->queue_.empty()) {
    // It stays where it is when more is queued.
    Work& work = stream->queue_.front();
    lock->unlock();
    const bool is_done = work();
    // It may own memory of the GPU.
    if (is_done) work = nullptr;
    lock->lock();
    if (!is_done) break;
    stream->queue_.pop_front();
    moved = true;
  }
  return moved;
}

bool FakeGpu::StepLocked(Lock* lock) {
  bool moved = false;
  // Work may open streams, at the end of the list.
  for (size_t i = 0; i < streams_.size(); ++i) {
    moved |= DoWork(streams_[i].get(), lock);
  }
  streams_.erase(std::remove_if(streams_.begin(), streams_.end(),
                                [](const std::unique_ptr<Stream>& stream) {
                                  return stream->is_deleted_ &&
                                         stream->queue_.empty();
                                }),
                 streams_.end());
  return moved;
}

void FakeGpu::Step() {
  Lock lock(mutex_);
  (void)StepLocked(&lock);
}

void FakeGpu::WorkAlone() {
  worker_ = std::thread([this] {
    Lock lock(mutex_);
    while (!is_ending_) {
      const auto now = Clock::now();
      longest_pause_ = std::max(longest_pause_, now - std::min(due_, now));
      due_ = now;
      // Work may be queued while a step runs other work without the lock.
      const uint64_t seen = queued_;
      if (StepLocked(&lock)) continue;
      const auto has_more = [&] { return is_ending_ || queued_ != seen; };
      is_idle_ = std::all_of(
          streams_.begin(), streams_.end(),
          [](const auto& stream) { return stream->queue_.empty(); });
      if (is_idle_) {
        has_work_.wait(lock, has_more);
      } else {
        // What it waits for may be another GPU's to do.
        has_work_.wait_for(lock, std::chrono::microseconds(100), has_more);
      }
    }
  });
}

double FakeGpu::longest_pause_s() const {
  const Lock lock(mutex_);
  return std::chrono::duration<double>(longest_pause_).count();
}

// --- Faults ---

void FakeGpu::FailNextCopy() {
  const Lock lock(mutex_);
  fails_next_copy_ = true;
}

void FakeGpu::RunOutOfEvents(int count) {
  const Lock lock(mutex_);
  events_left_ = count;
}

bool FakeGpu::TakeEvent() {
  const Lock lock(mutex_);
  if (events_left_ > 0) --events_left_;
  return events_left_ != 0;
}

void FakeGpu::RunOutOfPinned() {
  const Lock lock(mutex_);
  has_pinned_ = false;
}

size_t FakeGpu::pinned_bytes() const {
  const Lock lock(mutex_);
  return pinned_bytes_;
}

size_t FakeGpu::pinned_blocks() const {
  const Lock lock(mutex_);
  return pinned_.size();
}

}  // namespace hvd
