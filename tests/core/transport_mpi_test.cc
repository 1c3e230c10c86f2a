// SPDX-License-Identifier: Apache-2.0
// The contract of transports over MPI, and through shared memory among
// processes that MPI started. Runs alone and under mpirun -n N. Every
// rank's exit status is non-zero when any rank failed.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/options.h"
#include "transport/backends.h"
#include "transport_contract.h"

namespace hvd {
namespace {

// Failures of all ranks.
int SumOverRanks(Transport* transport, int failures) {
  Call call({static_cast<float>(failures)}, 1);
  call.Start(transport, {});
  Drive(transport, [&] { return call.done(); });
  return call.status().ok() ? static_cast<int>(call.out()[0]) : 1;
}

// One after another on one backend, and on a new one for every size of chunk:
// a backend may be opened again.
int RunAll(bool shm, int64_t chunk_bytes, const std::string& host_id,
           const std::vector<std::string>& wanted) {
  Options options = Options::Defaults();
  options.shm = shm;
  options.host_id = host_id;
  options.chunk_bytes = options.shm_chunk_bytes = chunk_bytes;
  auto opened = OpenBackend({}, options);
  if (!opened.ok()) {
    std::printf("FAIL %s\n", opened.status().message().c_str());
    return 1;
  }
  Backend* const backend = opened.value().get();
  const bool speaks = backend->topology().rank == 0;
  ContractRank self(backend, 0, chunk_bytes, shm);
  auto transport = self.NewTransport();
  int failed = 0, slot = 1;
  for (const ContractCase& one : ContractCases()) {
    const int first_slot = slot;
    slot += kSetsPerCase;
    if (!wanted.empty() && wanted[0] != one.name) continue;
    TakeFailures();
    ContractRank view(backend, first_slot, chunk_bytes, shm);
    one.run(&view);
    const bool ok = SumOverRanks(transport.get(), TakeFailures()) == 0;
    failed += !ok;
    if (speaks) std::printf("%s %s\n", ok ? "ok  " : "FAIL", one.name);
    std::fflush(stdout);
  }
  return failed;
}

// A host for every two ranks, as the launcher numbers them.
std::string PairOfThisRank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    const char* const rank = std::getenv(name);
    if (rank != nullptr) return std::to_string(std::atoi(rank) / 2);
  }
  return "0";
}

}  // namespace
}  // namespace hvd

int main(int argc, char** argv) {
  const std::vector<std::string> wanted(argv + 1, argv + argc);
  int failed = 0;
  for (int64_t chunk_bytes : {1024, 65536}) {
    for (bool shm : {false, true}) {
      for (const std::string& host_id :
           {std::string(), hvd::PairOfThisRank()}) {
        failed += hvd::RunAll(shm, chunk_bytes, host_id, wanted);
      }
    }
  }
  hvd::FinalizeBackends();
  return failed == 0 ? 0 : 1;
}
