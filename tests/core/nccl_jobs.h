// SPDX-License-Identifier: Apache-2.0
// What tests need of jobs whose cards work among themselves by FakeNccl.
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

#include "card_calls.h"
#include "core/log.h"
#include "core/runtime.h"
#include "fake_nccl.h"
#include "harness.h"
#include "runtime_calls.h"

namespace hvd {

inline Result<const NcclLibrary*> Nccl(int /*rank*/) {
  static const Result<NcclLibrary> library = NcclLibrary::Find(&FakeNccl::Find);
  return &library.value();
}

inline Options InStreamOrder() {
  Options options = Options::Defaults();
  options.async_completion = 1;
  return options;
}

inline CardJob WithOptions(Options options) {
  CardJob job;
  job.options = std::move(options);
  return job;
}

inline CardJob OfSets(std::vector<std::vector<int>> sets) {
  CardJob job;
  job.sets = std::move(sets);
  return job;
}

inline bool Contains(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

// Until NCCL carries the ranks' sums, or `limit` is over.
inline bool BecomesDirect(
    int rank, int size, Runtime* runtime, TestCard* card,
    std::chrono::milliseconds limit = std::chrono::milliseconds(10000)) {
  const int before = FakeNccl::completed();
  const auto end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    CardCall sum(card, runtime, "warm", Filled(10, 1.0f + rank));
    EXPECT_EQ(sum.Wait().message(), "");
    EXPECT_TRUE(sum.Values() == Filled(10, size * (size + 1) / 2.0f));
    // All ranks must leave together, so they agree on it.
    const float mine = FakeNccl::completed() > before           ? 2.0f
                       : std::chrono::steady_clock::now() > end ? 1.0f
                                                                : 0.0f;
    PendingPtr all =
        Start(runtime, {"done", Verb::kAllreduce, ReduceOp::kMin}, {{mine}});
    EXPECT_EQ(all->Wait().message(), "");
    if (all->out[0][0] > 0) return all->out[0][0] > 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
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
  std::vector<std::string> taken() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

inline void Nothing(int, Runtime*, TestCard*) {}

// Cards of the job do not reduce among themselves, and one line says why.
inline void CheckStaged(
    int size, const std::function<void(int, Runtime*, TestCard*)>& prepare,
    const std::function<Result<const NcclLibrary*>(int)>& find,
    const std::string& why, const CardJob& job = {}) {
  Lines lines;
  RunOnCards(
      size,
      [&](int rank, Runtime* runtime, TestCard* card) {
        prepare(rank, runtime, card);
        EXPECT_FALSE(BecomesDirect(rank, size, runtime, card,
                                   std::chrono::milliseconds(400)));
      },
      find, job);
  std::vector<std::string> found;
  for (const std::string& line : lines.taken()) {
    if (Contains(line, "reduced in host memory, not by NCCL: ")) {
      found.push_back(line);
    }
  }
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(Contains(found[0], why));
  if (!Contains(found[0], why)) std::printf("%s\n", found[0].c_str());
  EXPECT_EQ(FakeNccl::completed(), 0);
}

}  // namespace hvd

#endif  // HVD_TESTS_CORE_NCCL_JOBS_H_
