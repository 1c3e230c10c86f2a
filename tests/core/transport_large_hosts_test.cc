// SPDX-License-Identifier: Apache-2.0
// Transports of jobs that span hosts, with many ranks or large chunks: the
// contract.
#include "harness.h"
#include "shared_contract.h"
#include "transport/collectives/staged_transport.h"

namespace hvd {
namespace {

TEST(contract_of_3_hosts_of_3) {
  RunSharedContract(9, 4096, 1 << 20,
                    {"a", "a", "a", "b", "b", "b", "c", "c", "c"});
}
TEST(contract_of_hosts_with_large_chunks) {
  RunSharedContract(4, kDefaultChunkBytes / 8, 8 << 20, {"a", "a", "b", "b"});
}

}  // namespace
}  // namespace hvd
