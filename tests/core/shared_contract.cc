// SPDX-License-Identifier: Apache-2.0
// A world of threads for each case.
#include "shared_contract.h"

#include <cstdio>
#include <set>

#include "core/options.h"
#include "harness.h"
#include "run_ranks.h"
#include "thread_world.h"
#include "transport_contract.h"

namespace hvd {
namespace {

int CountHosts(const std::vector<std::string>& hosts) {
  const std::set<std::string> names(hosts.begin(), hosts.end());
  return static_cast<int>(names.size());
}

}  // namespace

Options ContractOptions(int64_t chunk_bytes, int64_t shm_bytes) {
  Options options = Options::Defaults();
  options.shm_chunk_bytes = options.chunk_bytes = chunk_bytes;
  options.shm_bytes = shm_bytes;
  options.copy_threads = 1;
  return options;
}

void RunSharedContract(int size, int64_t chunk_bytes, int64_t shm_bytes,
                       const std::vector<std::string>& hosts) {
  RunSharedContract(size, ContractOptions(chunk_bytes, shm_bytes), hosts);
}

void RunSharedContract(int size, const Options& options,
                       const std::vector<std::string>& hosts) {
  RunShared(ContractCases(), size, options, hosts);
}

void RunShared(const std::vector<ContractCase>& cases, int size,
               const Options& options, const std::vector<std::string>& hosts) {
  const int64_t chunk_bytes = options.chunk_bytes;
  for (const ContractCase& one : cases) {
    const int before = test::failures;
    ThreadWorld world(size, hosts, chunk_bytes, options.copy_threads);
    RunRanks(size, [&](int rank) {
      auto backend = world.OpenShared(rank, options, kSetsPerCase);
      ContractRank self(backend.get(), 0, chunk_bytes, true);
      one.run(&self);
      // As the runtime does when it ends: peers may wait for what full rings
      // have held up.
      Drive({}, [&] { return !backend->channel().Flush(); });
    });
    if (test::failures != before) {
      std::printf(
          "  in %s, shared, with %d ranks on %d hosts, chunks of %lld bytes\n",
          one.name, size, hosts.empty() ? 1 : CountHosts(hosts),
          static_cast<long long>(chunk_bytes));
    }
  }
}

}  // namespace hvd
