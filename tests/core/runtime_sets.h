// SPDX-License-Identifier: Apache-2.0
// Whole jobs whose process sets come and go, with ranks as threads.
#ifndef HVD_TESTS_CORE_RUNTIME_SETS_H_
#define HVD_TESTS_CORE_RUNTIME_SETS_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/options.h"
#include "core/runtime.h"
#include "faults.h"
#include "harness.h"
#include "run_ranks.h"
#include "runtime_calls.h"
#include "thread_world.h"

namespace hvd {

using Ranks = std::vector<int>;
using Body = std::function<void(int, Runtime*)>;

inline Options Dynamic() {
  Options options = Options::Defaults();
  options.dynamic_process_sets = true;
  return options;
}

inline void RunRuntimes(
    int size, const Options& options, const std::vector<Ranks>& sets,
    const Body& body,
    const std::function<std::unique_ptr<Backend>(int)>& open) {
  RunRanks(size, [&](int rank) {
    Runtime runtime(open(rank), options);
    EXPECT_EQ(runtime.Start(sets).message(), "");
    body(rank, &runtime);
    runtime.Stop();
  });
}

inline void RunByMailboxes(
    int size, const std::vector<Ranks>& sets, const Body& body,
    const std::vector<std::shared_ptr<Faults>>& faults = {},
    const Options& options = Dynamic()) {
  ThreadWorld world(size, {}, 4096);
  RunRuntimes(size, options, sets, body, [&](int rank) {
    return faults.empty() ? world.Open(rank) : world.Open(rank, faults[rank]);
  });
}

// shm_bytes are beside what `sets` reserve.
inline void RunShared(int size, const std::vector<std::string>& hosts,
                      const Body& body, int64_t shm_bytes = 1 << 20) {
  Options options = Dynamic();
  options.shm_bytes = shm_bytes;
  options.shm_chunk_bytes = options.chunk_bytes = 4096;
  ThreadWorld world(size, hosts);
  RunRuntimes(size, options, {}, body,
              [&](int rank) { return world.OpenShared(rank, options, 0); });
}

// Over mailboxes, within a host, and over two hosts.
inline void RunEverywhere(int size, const Body& body) {
  RunByMailboxes(size, {}, body);
  RunShared(size, {}, body);
  std::vector<std::string> hosts(size, "a");
  std::fill(hosts.begin() + (size + 1) / 2, hosts.end(), "b");
  RunShared(size, hosts, body);
}

inline bool IsIn(const Ranks& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

inline int AddSet(Runtime* runtime, const Ranks& ranks) {
  const Result<int> id = runtime->AddProcessSet(ranks);
  EXPECT_EQ(id.status().message(), "");
  return id.ok() ? id.value() : -1;
}

inline PendingPtr Sum(Runtime* runtime, int set, const std::string& name,
                      size_t count, float value) {
  Ask ask{name};
  ask.set = set;
  return Start(runtime, ask, {Filled(count, value)});
}

inline void ExpectSum(const PendingPtr& call, size_t count, float sum) {
  EXPECT_EQ(call->Wait().message(), "");
  EXPECT_TRUE(call->out[0] == Filled(count, sum));
}

inline void ExpectText(const Status& status, StatusCode code,
                       const std::string& part) {
  EXPECT_EQ(static_cast<int>(status.code()), static_cast<int>(code));
  const bool has = status.message().find(part) != std::string::npos;
  if (!has) EXPECT_EQ(status.message(), part);
}

}  // namespace hvd

#endif  // HVD_TESTS_CORE_RUNTIME_SETS_H_
