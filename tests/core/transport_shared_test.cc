// SPDX-License-Identifier: Apache-2.0
// Transports of the ranks of one host, which share memory: the contract.
#include "harness.h"
#include "shared_contract.h"
#include "transport/collectives/staged_transport.h"

namespace hvd {
namespace {

// Sanitizers see as much with 3 ranks, and large chunks in
// transport_threads_test.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST(shared_contract_with_1_rank) { RunSharedContract(1, 1024, 1 << 20); }
TEST(shared_contract_with_2_ranks) { RunSharedContract(2, 1024, 1 << 20); }
TEST(shared_contract_with_large_chunks) {
  RunSharedContract(2, kDefaultChunkBytes / 8, 8 << 20);
}
TEST(shared_contract_with_9_ranks) { RunSharedContract(9, 1024, 1 << 20); }
#endif
TEST(shared_contract_with_3_ranks) { RunSharedContract(3, 1024, 1 << 20); }
// Memory for a few chunks only.
TEST(shared_contract_with_little_memory) { RunSharedContract(3, 4096, 65536); }
// Memory for a few chunks of those that there are at first, and for one of the
// longest that autotune may ask for.
TEST(shared_contract_with_autotune) {
  Options options = ContractOptions(4096, 65536);
  options.autotune = true;
  if (test::kIsSanitized) return RunShared(RowCases(), 3, options);
  RunSharedContract(3, options);
  RunSharedContract(4, options, {"a", "a", "b", "b"});
}

}  // namespace
}  // namespace hvd
