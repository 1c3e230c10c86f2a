// SPDX-License-Identifier: Apache-2.0
// Transports of ranks with several threads: the contract.
#include "harness.h"
#include "shared_contract.h"
#include "transport/collectives/staged_transport.h"

namespace hvd {
namespace {

TEST(contract_with_several_threads_a_rank) {
  Options options = ContractOptions(kDefaultChunkBytes / 4, 8 << 20);
  options.copy_threads = 3;
  if (test::kIsSanitized) {
    // Large chunks are dear, and threads copy in all cases alike.
    RunShared(RowCases(), 2, options);
    RunShared(LifeCases(), 2, options);
    return;
  }
  RunSharedContract(2, options);
  options.copy_threads = 2;
  RunSharedContract(3, options, {"a", "a", "b"});
}

}  // namespace
}  // namespace hvd
