// SPDX-License-Identifier: Apache-2.0
// Blocks by size, and where they go when they come back.
#include "transport/device/pinned_memory.h"

#include <algorithm>
#include <utility>

namespace hvd {
namespace {

constexpr size_t kSmallestBlock = 4096;

size_t BlockBytes(size_t bytes) {
  size_t block = kSmallestBlock;
  while (block < bytes) block *= 2;
  return block;
}

}  // namespace

PinnedMemory::PinnedMemory(std::shared_ptr<Device> device, size_t most_kept)
    : device_(std::move(device)) {
  unused_->most_bytes = most_kept;
}

Result<std::shared_ptr<std::byte>> PinnedMemory::Take(size_t bytes) {
  const size_t size = BlockBytes(bytes);
  std::shared_ptr<void> block;
  if (auto found = unused_->blocks.find(size); found != unused_->blocks.end()) {
    block = std::move(found->second);
    unused_->blocks.erase(found);
    unused_->bytes -= size;
  } else {
    Result<std::shared_ptr<void>> made = device_->NewPinned(size);
    if (!made.ok()) return made.status();
    block = std::move(made.value());
  }
  auto* const data = static_cast<std::byte*>(block.get());
  const auto give_back = [unused = unused_, block = std::move(block),
                          size](std::byte*) mutable {
    if (unused->bytes + size > unused->most_bytes) return;
    unused->bytes += size;
    unused->blocks.emplace(size, std::move(block));
  };
  return std::shared_ptr<std::byte>(data, give_back);
}

}  // namespace hvd
