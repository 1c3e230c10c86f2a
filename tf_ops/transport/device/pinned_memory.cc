// SPDX-License-Identifier: Apache-2.0
// Blocks by size, and where they go when they come back.
#include "transport/device/pinned_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace hvd {
namespace {

constexpr size_t kSmallestBlock = 4096;
// Above it an eighth at most is more than was asked for: no other program can
// have pinned memory.
constexpr size_t kLargeBlock = size_t{1} << 26;

size_t BlockBytes(size_t bytes) {
  size_t block = kSmallestBlock;
  while (block < bytes) block *= 2;
  if (block <= kLargeBlock) return block;
  const size_t step = block / 16;
  return (bytes + step - 1) / step * step;
}

}  // namespace

PinnedMemory::PinnedMemory(std::shared_ptr<Device> device,
                           Clock::duration keep_for)
    : device_(std::move(device)), keep_for_(keep_for) {}

Result<std::shared_ptr<std::byte>> PinnedMemory::Take(size_t bytes) {
  const size_t size = BlockBytes(bytes);
  Result<std::shared_ptr<void>> found = Find(size);
  if (!found.ok()) return found.status();
  auto* const data = static_cast<std::byte*>(found.value().get());
  const auto give_back = [unused = unused_, block = std::move(found.value()),
                          size](std::byte*) mutable {
    unused->bytes += size;
    unused->blocks[size].push_back({std::move(block), Clock::now()});
  };
  return std::shared_ptr<std::byte>(data, give_back);
}

Result<std::shared_ptr<void>> PinnedMemory::Find(size_t size) {
  std::deque<Block>& unused = unused_->blocks[size];
  if (unused.empty()) return device_->NewPinned(size);
  std::shared_ptr<void> memory = std::move(unused.back().memory);
  unused.pop_back();
  unused_->bytes -= size;
  return memory;
}

void PinnedMemory::TakeOver(PinnedMemory* other) {
  for (auto& [size, blocks] : other->unused_->blocks) {
    std::deque<Block>& unused = unused_->blocks[size];
    // What came back first is freed first.
    std::deque<Block> all;
    std::merge(
        std::make_move_iterator(unused.begin()),
        std::make_move_iterator(unused.end()),
        std::make_move_iterator(blocks.begin()),
        std::make_move_iterator(blocks.end()), std::back_inserter(all),
        [](const Block& a, const Block& b) { return a.since < b.since; });
    unused = std::move(all);
    blocks.clear();
  }
  unused_->bytes += std::exchange(other->unused_->bytes, 0);
}

void PinnedMemory::FreeOne() {
  if (unused_->bytes == 0) return;
  const Clock::time_point limit = Clock::now() - keep_for_;
  for (auto& [size, blocks] : unused_->blocks) {
    if (blocks.empty() || blocks.front().since > limit) continue;
    blocks.pop_front();
    unused_->bytes -= size;
    return;
  }
}

}  // namespace hvd
