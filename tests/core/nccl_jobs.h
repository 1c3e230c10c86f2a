// SPDX-License-Identifier: Apache-2.0
// What tests need of jobs whose cards work among themselves by FakeNccl.
#ifndef HVD_TESTS_CORE_NCCL_JOBS_H_
#define HVD_TESTS_CORE_NCCL_JOBS_H_

#include <chrono>
#include <string>
#include <thread>

#include "card_calls.h"
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

}  // namespace hvd

#endif  // HVD_TESTS_CORE_NCCL_JOBS_H_
