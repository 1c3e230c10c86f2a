// SPDX-License-Identifier: Apache-2.0
// What tests need of jobs whose GPUs work among themselves by FakeNccl.
#ifndef HVD_TESTS_CORE_NCCL_JOBS_H_
#define HVD_TESTS_CORE_NCCL_JOBS_H_

#include <chrono>
#include <cstdio>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/log.h"
#include "core/runtime.h"
#include "fake_nccl.h"
#include "gpu_calls.h"
#include "harness.h"
#include "runtime_calls.h"

namespace hvd {

inline Result<const NcclLibrary*> Nccl(int /*rank*/) {
  static const Result<NcclLibrary> library = NcclLibrary::Find(&FakeNccl::Find);
  return &library.value();
}

inline Options InStreamOrder() {
  Options options = Options::Defaults();
  options.async_completion = true;
  return options;
}

inline GpuJob WithOptions(Options options) {
  GpuJob job;
  job.options = std::move(options);
  return job;
}

inline GpuJob OfSets(std::vector<std::vector<int>> sets) {
  GpuJob job;
  job.sets = std::move(sets);
  return job;
}

inline bool Contains(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

inline void SumOnce(int rank, int size, Runtime* runtime, TestGpu* gpu,
                    int set = 0) {
  GpuCall sum(gpu, runtime, GpuAsk{"warm", ReduceOp::kSum, 1, 1, set},
              Filled(10, 1.0f + rank));
  EXPECT_EQ(sum.Wait().message(), "");
  EXPECT_TRUE(sum.Values() == Filled(10, size * (size + 1) / 2.0f));
}

// The ranks sum up until `met` on all of them. False when it is not in time.
inline bool SumUntil(int rank, int size, Runtime* runtime, TestGpu* gpu,
                     const std::function<bool()>& met, int set = 0) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (;;) {
    SumOnce(rank, size, runtime, gpu, set);
    // All ranks must leave together, so they agree on it.
    const float mine = met()                                    ? 2.0f
                       : std::chrono::steady_clock::now() > end ? 1.0f
                                                                : 0.0f;
    PendingPtr all =
        Start(runtime, {"done", Verb::kAllreduce, ReduceOp::kMin}, {{mine}});
    const Status met_all = all->Wait();
    EXPECT_EQ(met_all.message(), "");
    if (!met_all.ok()) return false;
    if (all->out[0][0] > 0) return all->out[0][0] > 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// Until NCCL carries the sums of a set, which has all ranks.
inline bool BecomesDirect(int rank, int size, Runtime* runtime, TestGpu* gpu,
                          int set = 0) {
  const int before = FakeNccl::completed();
  return SumUntil(
      rank, size, runtime, gpu,
      [before] { return FakeNccl::completed() > before; }, set);
}

// The lines that ranks log while it lives.
class Lines {
 public:
  Lines() {
    SetLogSink([this](LogLevel, const std::string& line) {
      const std::lock_guard<std::mutex> lock(mutex_);
      lines_.push_back(line);
    });
  }
  ~Lines() { SetLogSink(nullptr); }
  std::vector<std::string> With(const std::string& words) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::string> found;
    for (const std::string& line : lines_) {
      if (Contains(line, words)) found.push_back(line);
    }
    return found;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

inline constexpr char kStaysStaged[] = "reduced in host memory, not by NCCL: ";

// Sums up until a line says why GPUs do not, and for some time after.
inline void StayStaged(int rank, int size, Runtime* runtime, TestGpu* gpu,
                       const Lines& lines) {
  EXPECT_TRUE(SumUntil(rank, size, runtime, gpu,
                       [&] { return !lines.With(kStaysStaged).empty(); }));
  for (int i = 0; i < 20; ++i) SumOnce(rank, size, runtime, gpu);
  EXPECT_EQ(FakeNccl::completed(), 0);
}

inline void Nothing(int, Runtime*, TestGpu*) {}

// GPUs of the job do not reduce among themselves, and one line says why.
inline void CheckStaged(
    int size, const std::function<void(int, Runtime*, TestGpu*)>& prepare,
    const std::function<Result<const NcclLibrary*>(int)>& find,
    const std::string& why, const GpuJob& job = {}) {
  const Lines lines;
  RunOnGpus(
      size,
      [&](int rank, Runtime* runtime, TestGpu* gpu) {
        prepare(rank, runtime, gpu);
        StayStaged(rank, size, runtime, gpu, lines);
      },
      find, job);
  const std::vector<std::string> found = lines.With(kStaysStaged);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(Contains(found[0], why));
  if (!Contains(found[0], why)) std::printf("%s\n", found[0].c_str());
  EXPECT_EQ(FakeNccl::completed(), 0);
}

}  // namespace hvd

#endif  // HVD_TESTS_CORE_NCCL_JOBS_H_
