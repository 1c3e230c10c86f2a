// SPDX-License-Identifier: Apache-2.0
// Transports whose blocks are written past the cache: the contract.
#include "cpu/store_choice.h"
#include "harness.h"
#include "shared_contract.h"
#include "transport/collectives/staged_transport.h"

namespace hvd {
namespace {

TEST(contract_of_blocks_past_the_cache) {
  Options options = ContractOptions(4096, 1 << 20);
  options.shm_non_temporal = StoreChoice::kAlways;
  RunSharedContract(2, options);
  RunSharedContract(4, options, {"a", "a", "b", "b"});
  options = ContractOptions(kDefaultChunkBytes / 4, 8 << 20);
  options.shm_non_temporal = StoreChoice::kAlways;
  options.copy_threads = 2;
  RunSharedContract(3, options);
}

}  // namespace
}  // namespace hvd
