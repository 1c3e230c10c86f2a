// SPDX-License-Identifier: Apache-2.0
// Transports of ranks with several threads: the contract.
#include "harness.h"
#include "shared_contract.h"
#include "transport/collectives/staged_transport.h"

namespace hvd {
namespace {

TEST(ContractWithSeveralThreadsARank) {
  Options options = ContractOptions(kDefaultChunkBytes / 4, 8 << 20);
  options.copy_threads = 3;
  RunSharedContract(2, options);
  options.copy_threads = 2;
  RunSharedContract(3, options, {"a", "a", "b"});
}

}  // namespace
}  // namespace hvd
