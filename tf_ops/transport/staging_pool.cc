// SPDX-License-Identifier: Apache-2.0
// Best fit among the kept buffers. If none fits, a fresh one.
#include "transport/staging_pool.h"

#include <iterator>
#include <new>
#include <utility>

namespace hvd {
namespace {

constexpr size_t kPageBytes = 4096;
// A cache line. So an offset that is aligned in a buffer is an aligned address.
constexpr std::align_val_t kAlignment{64};

struct AlignedDelete {
  void operator()(std::byte* data) const {
    ::operator delete(data, kAlignment);
  }
};

}  // namespace

StagingBuffer HeapStagingPool::Take(size_t bytes, Urgency urgency) {
  if (urgency == Urgency::kCanWait && in_use_bytes_ + bytes > limit_bytes_) {
    return {};
  }
  const size_t wanted = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  StagingBuffer buffer;
  auto fit = kept_.lower_bound(wanted);
  // A buffer that is much too large is left to chunks that need it.
  if (fit != kept_.end() && fit->first <= 2 * wanted) {
    buffer = std::move(fit->second);
    kept_bytes_ -= buffer.bytes;
    kept_.erase(fit);
  } else {
    std::unique_ptr<std::byte, AlignedDelete> fresh(static_cast<std::byte*>(
        ::operator new(wanted, kAlignment, std::nothrow)));
    if (fresh == nullptr) {
      kept_.clear();
      kept_bytes_ = 0;
      return {};
    }
    buffer.data = std::move(fresh);
    buffer.bytes = wanted;
  }
  in_use_bytes_ += buffer.bytes;
  return buffer;
}

void HeapStagingPool::Give(StagingBuffer buffer) {
  if (buffer.data == nullptr) return;
  in_use_bytes_ -= buffer.bytes;
  kept_bytes_ += buffer.bytes;
  const size_t bytes = buffer.bytes;
  kept_.emplace(bytes, std::move(buffer));
  while (kept_bytes_ > limit_bytes_) {
    auto largest = std::prev(kept_.end());
    kept_bytes_ -= largest->first;
    kept_.erase(largest);
  }
}

}  // namespace hvd
