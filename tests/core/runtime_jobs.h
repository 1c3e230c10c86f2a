// SPDX-License-Identifier: Apache-2.0
// Whole jobs with ranks as threads: a Runtime each, over every way to connect.
#ifndef HVD_TESTS_CORE_RUNTIME_JOBS_H_
#define HVD_TESTS_CORE_RUNTIME_JOBS_H_

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
#include "thread_world.h"

namespace hvd {

// A job: body(rank, runtime) on one thread per rank, stopped at the end.
inline void RunJob(ThreadWorld* world, int size,
                   const std::vector<std::vector<int>>& sets,
                   const std::function<void(int, Runtime*)>& body,
                   const std::vector<std::shared_ptr<Faults>>& faults = {}) {
  RunRanks(size, [&](int rank) {
    Runtime runtime(
        faults.empty() ? world->Open(rank) : world->Open(rank, faults[rank]),
        Options::Defaults());
    EXPECT_EQ(runtime.Start(sets).message(), "");
    body(rank, &runtime);
    runtime.Stop();
  });
}

// Through memory that the ranks of a host share.
inline void RunSharedJob(int size, const std::vector<std::string>& hosts,
                         const std::function<void(int, Runtime*)>& body) {
  Options options = Options::Defaults();
  options.shm_bytes = 65536;
  options.shm_chunk_bytes = options.chunk_bytes = 4096;
  ThreadWorld world(size, hosts);
  RunRanks(size, [&](int rank) {
    Runtime runtime(world.OpenShared(rank, options, 0), options);
    EXPECT_EQ(runtime.Start({}).message(), "");
    body(rank, &runtime);
    runtime.Stop();
  });
}

// By mailboxes, on one host, and, with three ranks and more, on two hosts.
inline void RunJob(int size, const std::function<void(int, Runtime*)>& body) {
  ThreadWorld world(size, {}, 4096);
  RunJob(&world, size, {}, body);
  RunSharedJob(size, {}, body);
  if (size < 3) return;
  std::vector<std::string> hosts(size, "a");
  std::fill(hosts.begin() + (size + 1) / 2, hosts.end(), "b");
  RunSharedJob(size, hosts, body);
}

}  // namespace hvd

#endif  // HVD_TESTS_CORE_RUNTIME_JOBS_H_
