// SPDX-License-Identifier: Apache-2.0
// CudaDriver and CudaDevice: what a driver or a GPU may lack, and their order.
#include "transport/cuda/cuda_device.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harness.h"
#include "test_gpu.h"
#include "transport/cuda/cuda_mark.h"

namespace hvd {
namespace {

template <typename T>
T Taken(Result<T> result) {
  return std::move(result.value());
}

bool Contains(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

TEST(a_driver_that_lacks_a_function_is_refused) {
  const auto old = CudaDriver::Find([](const char* name) -> void* {
    return std::strcmp(name, "cuStreamGetCtx") == 0 ? nullptr
                                                    : FindFakeCuda(name);
  });
  EXPECT_EQ(old.status().message(),
            "libcuda.so.1 has no cuStreamGetCtx; install a newer driver of the "
            "GPU");
  EXPECT_EQ(old.status().code(), StatusCode::kFailedPrecondition);
}

// It loads kernels of a newer toolkit, and refuses to start those with many
// arguments.
TEST(an_old_driver_has_no_kernels) {
  const auto kernels = [] {
    TestGpu gpu;
    return Taken(gpu.device()->NewStream(gpu.Mark()))->CheckKernels();
  };
  SetFakeCudaVersion(12000);
  const Status old = kernels();
  SetFakeCudaVersion(12020);
  EXPECT_EQ(old.message(),
            "a GPU's driver is of CUDA 12.0, and that of 12.1 is needed");
  EXPECT_TRUE(kernels().ok());
}

TEST(a_result_of_the_driver_is_named) {
  const CudaDriver& driver = *FakeDriver();
  EXPECT_TRUE(driver.Check(kCudaSuccess, "nothing").ok());
  EXPECT_EQ(driver.Check(700, "a GPU failed").message(),
            "a GPU failed: CUDA_ERROR_ILLEGAL_ADDRESS (700).");
  EXPECT_EQ(driver.Check(12345, "a GPU failed").message(),
            "a GPU failed: an error of its driver (12345).");
  EXPECT_EQ(driver.Check(kCudaOutOfMemory, "none").code(),
            StatusCode::kResourceExhausted);
}

// A mark is a place: what the stream is given later does not count. CatchUp
// counts it.
TEST(a_stream_waits_for_what_was_queued_before_the_mark) {
  TestGpu gpu;
  const auto is_open = std::make_shared<bool>(false);
  const TestGpu::Ready early = gpu.Mark();
  gpu.ComputeOnce(is_open);
  const TestGpu::Ready late = gpu.Mark();
  const auto record = [&](const TestGpu::Ready& ready, bool catches_up) {
    auto stream = Taken(gpu.device()->NewStream(ready));
    EXPECT_TRUE(
        (catches_up ? stream->CatchUp(ready) : stream->Wait(ready)).ok());
    return std::make_pair(Taken(stream->Record([] {})), std::move(stream));
  };
  const auto after_early = record(early, false);
  const auto after_late = record(late, false);
  const auto caught_up = record(early, true);
  for (int i = 0; i < 10; ++i) gpu.Step();
  EXPECT_TRUE(after_early.first->IsReached().value());
  EXPECT_FALSE(after_late.first->IsReached().value());
  EXPECT_FALSE(caught_up.first->IsReached().value());
  *is_open = true;
  for (int i = 0; i < 10; ++i) gpu.Step();
  EXPECT_TRUE(after_late.first->IsReached().value());
  EXPECT_TRUE(caught_up.first->IsReached().value());
}

TEST(another_gpu_is_refused) {
  TestGpu gpu, other;
  auto stream = Taken(gpu.device()->NewStream(gpu.Mark()));
  for (const Status& status :
       {stream->Wait(other.Mark()), stream->CatchUp(other.Mark())}) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_TRUE(Contains(status.message(), "on two GPUs; a rank uses one"));
  }
  EXPECT_TRUE(stream->Wait(gpu.Mark()).ok());
}

TEST(a_gpu_without_memory_for_a_stream_says_what_to_do) {
  TestGpu gpu;
  CudaDriver full = *FakeDriver();
  full.new_stream = [](CudaStream*, unsigned) { return kCudaOutOfMemory; };
  const TestGpu::Ready ready =
      MarkStream(&full, gpu.framework_stream()).value();
  const Status status = gpu.device()->NewStream(ready).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "a GPU gave no stream: CUDA_ERROR_OUT_OF_MEMORY (2). Other "
            "processes may hold its memory: call hvd.pin_gpu(), or set "
            "TF_FORCE_GPU_ALLOW_GROWTH=true, so that TensorFlow takes what it "
            "needs.");
}

// What a driver that has no time for callbacks lets through.
bool calls_are_open = false;

TEST(nothing_waits_for_a_callback) {
  TestGpu gpu;
  calls_are_open = false;
  CudaDriver slow = *FakeDriver();
  slow.call_back = [](CudaStream stream, CudaCallback callback, void* argument,
                      unsigned) {
    auto* const of_gpu = reinterpret_cast<FakeGpu::Stream*>(stream);
    of_gpu->gpu->Queue(of_gpu, [=] {
      if (calls_are_open) callback(stream, kCudaSuccess, argument);
      return calls_are_open;
    });
    return kCudaSuccess;
  };
  const TestGpu::Ready ready =
      MarkStream(&slow, gpu.framework_stream()).value();
  auto stream = Taken(gpu.device()->NewStream(ready));
  int called = 0;
  const auto batch = Taken(stream->Record([&] { ++called; }));
  EXPECT_TRUE(stream->HoldFramework({ready}).ok());
  bool framework_goes_on = false;
  gpu.Compute([&] { framework_goes_on = true; });
  const auto next = Taken(stream->Record([&] { ++called; }));
  for (int i = 0; i < 10; ++i) gpu.Step();
  EXPECT_TRUE(batch->IsReached().value());
  EXPECT_TRUE(framework_goes_on);
  EXPECT_TRUE(next->IsReached().value());
  EXPECT_EQ(called, 0);
  calls_are_open = true;
  for (int i = 0; i < 10; ++i) gpu.Step();
  EXPECT_EQ(called, 2);
}

// Whoever waits for the end of a copy must hear of a GPU that fails too.
TEST(a_stream_that_fails_calls_back) {
  TestGpu gpu;
  auto stream = Taken(gpu.device()->NewStream(gpu.Mark()));
  auto pinned = gpu.device()->NewPinned(64).value();
  const auto memory = gpu.Allocate(64);
  std::vector<char> pageable(64);
  int called = 0;
  // A GPU cannot copy such memory without waiting, so it is a fault here.
  EXPECT_TRUE(stream->CopyBytes({{pageable.data(), memory.get(), 64}}).ok());
  auto event = Taken(stream->Record([&] { ++called; }));
  EXPECT_FALSE(event->IsReached().value());
  gpu.Step();
  EXPECT_EQ(called, 1);
  EXPECT_EQ(event->IsReached().status().message(),
            "a GPU failed: CUDA_ERROR_ILLEGAL_ADDRESS (700).");
  // It is of no use any more. Others are.
  EXPECT_TRUE(stream->CopyBytes({{pinned.get(), memory.get(), 64}}).ok());
  auto next = Taken(stream->Record([&] { ++called; }));
  auto healthy = Taken(gpu.device()->NewStream(gpu.Mark()));
  EXPECT_TRUE(healthy->CopyBytes({{pinned.get(), memory.get(), 64}}).ok());
  auto fine = Taken(healthy->Record([&] { ++called; }));
  gpu.Step();
  EXPECT_EQ(called, 3);
  EXPECT_FALSE(next->IsReached().ok());
  EXPECT_TRUE(fine->IsReached().value());
}

TEST(copies_go_both_ways) {
  TestGpu gpu;
  auto stream = Taken(gpu.device()->NewStream(gpu.Mark()));
  const auto pinned = gpu.device()->NewPinned(32).value();
  const auto memory = gpu.Allocate(16);
  auto* const host = static_cast<char*>(pinned.get());
  std::memcpy(host, "fifteen letters", 16);
  EXPECT_TRUE(stream->CopyBytes({{host, memory.get(), 16}}).ok());
  EXPECT_TRUE(stream->CopyBytes({{memory.get(), host + 16, 16}}).ok());
  gpu.Step();
  EXPECT_EQ(std::string(host + 16), "fifteen letters");
}

}  // namespace
}  // namespace hvd
