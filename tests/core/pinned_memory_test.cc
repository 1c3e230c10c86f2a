// SPDX-License-Identifier: Apache-2.0
// PinnedMemory: which blocks it gives out again, and which it frees.
#include "transport/device/pinned_memory.h"

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "harness.h"
#include "test_gpu.h"

namespace hvd {
namespace {

// Nothing is staged any more, once GPUs reduce among themselves.
TEST(pinned_memory_that_nobody_needs_goes) {
  TestGpu gpu;
  const auto stream = gpu.device()->NewStream(gpu.Mark());
  PinnedMemory pinned(gpu.device(), std::chrono::hours(0));
  {
    const auto block = pinned.Take(1 << 20).value();
  }
  EXPECT_EQ(pinned.kept_bytes(), size_t{1} << 20);
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  pinned.FreeOne();
  EXPECT_EQ(pinned.kept_bytes(), 0u);
}

// All that a step needs is there for the next one, however much it is.
TEST(pinned_memory_of_a_step_is_kept) {
  TestGpu gpu;
  const auto stream = gpu.device()->NewStream(gpu.Mark());
  PinnedMemory pinned(gpu.device(), std::chrono::hours(1));
  size_t of_one_step = 0;
  for (int step = 0; step < 3; ++step) {
    std::vector<std::shared_ptr<std::byte>> blocks;
    for (int i = 0; i < 10; ++i) {
      blocks.push_back(pinned.Take(size_t{4} << 20).value());
    }
    if (step == 0) of_one_step = gpu.gpu().pinned_bytes();
    EXPECT_EQ(pinned.kept_bytes(), 0u);
  }
  EXPECT_EQ(gpu.gpu().pinned_bytes(), of_one_step);
  EXPECT_EQ(pinned.kept_bytes(), of_one_step);
}

TEST(pinned_memory_is_taken_over) {
  TestGpu gpu;
  const auto stream = gpu.device()->NewStream(gpu.Mark());
  PinnedMemory pinned(gpu.device(), std::chrono::hours(0));
  for (int i = 0; i < 2; ++i) {
    PinnedMemory other(gpu.device(), std::chrono::hours(0));
    {
      const auto one = other.Take(4096).value(), two = other.Take(8192).value();
    }
    pinned.TakeOver(&other);
    EXPECT_EQ(other.kept_bytes(), 0u);
    EXPECT_EQ(pinned.kept_bytes(), (i + 1) * 12288u);
  }
  EXPECT_EQ(gpu.gpu().pinned_blocks(), size_t{4});
  {
    const auto taken = pinned.Take(8192).value();
    EXPECT_EQ(pinned.kept_bytes(), 16384u);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (int i = 0; i < 4; ++i) pinned.FreeOne();
  EXPECT_EQ(gpu.gpu().pinned_blocks(), size_t{0});
}

TEST(large_blocks_of_pinned_memory_are_little_more_than_is_asked_for) {
  TestGpu gpu;
  const auto stream = gpu.device()->NewStream(gpu.Mark());
  PinnedMemory pinned(gpu.device(), std::chrono::hours(1));
  constexpr size_t kMb = size_t{1} << 20;
  const auto exact = pinned.Take(64 * kMb).value();
  EXPECT_EQ(gpu.gpu().pinned_bytes(), 64 * kMb);
  const auto more = pinned.Take(64 * kMb + 1).value();
  EXPECT_EQ(gpu.gpu().pinned_bytes(), (64 + 72) * kMb);
  const auto full = pinned.Take(128 * kMb).value();
  EXPECT_EQ(gpu.gpu().pinned_bytes(), (64 + 72 + 128) * kMb);
}

TEST(pinned_memory_that_nobody_needs_is_freed) {
  TestGpu gpu;
  const auto stream = gpu.device()->NewStream(gpu.Mark());
  std::shared_ptr<std::byte> outlives;
  {
    PinnedMemory pinned(gpu.device(), std::chrono::seconds(0));
    std::vector<std::shared_ptr<std::byte>> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(pinned.Take(4000).value());
    EXPECT_EQ(pinned.kept_bytes(), 0u);
    blocks.clear();
    EXPECT_EQ(pinned.kept_bytes(), 4 * 4096u);
    outlives = pinned.Take(5000).value();  // it is another size
    // Taking some frees nothing: a GPU may be at work.
    EXPECT_EQ(pinned.kept_bytes(), 4 * 4096u);
    pinned.FreeOne();
    EXPECT_EQ(pinned.kept_bytes(), 3 * 4096u);
    EXPECT_TRUE(pinned.Take(1).ok());  // it comes back at once
    EXPECT_EQ(pinned.kept_bytes(), 3 * 4096u);
    gpu.gpu().RunOutOfPinned();
    EXPECT_TRUE(pinned.Take(1).ok());
    EXPECT_FALSE(pinned.Take(9000).ok());
  }
  outlives.reset();
}
}  // namespace
}  // namespace hvd
