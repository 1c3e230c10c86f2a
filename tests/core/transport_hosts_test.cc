// SPDX-License-Identifier: Apache-2.0
// Transports of jobs that span hosts, and of ranks with several threads: the
// contract.
#include "harness.h"
#include "shared_contract.h"
#include "transport/staged_transport.h"

namespace hvd {
namespace {

TEST(ContractWithSeveralThreadsARank) {
  RunSharedContract(2, kDefaultPieceBytes / 4, 8 << 20, {}, 3);
  RunSharedContract(3, kDefaultPieceBytes / 4, 8 << 20, {"a", "a", "b"}, 2);
}

TEST(ContractOf2HostsOf2) {
  RunSharedContract(4, 1024, 1 << 20, {"a", "a", "b", "b"});
}
TEST(ContractOfRanksDealtOutOverHosts) {
  RunSharedContract(4, 4096, 1 << 20, {"a", "b", "a", "b"});
}
TEST(ContractOfHostsOfDifferentSizes) {
  RunSharedContract(6, 1024, 1 << 20, {"a", "b", "b", "c", "b", "c"});
}
TEST(ContractOfAHostAndARank) {
  RunSharedContract(3, 4096, 1 << 20, {"a", "a", "b"});
}
TEST(ContractOf3HostsOf3) {
  RunSharedContract(9, 4096, 1 << 20,
                    {"a", "a", "a", "b", "b", "b", "c", "c", "c"});
}
TEST(ContractOfHostsWithLittleMemory) {
  RunSharedContract(4, 4096, 65536, {"a", "a", "b", "b"});
}
TEST(ContractOfHostsWithLargePieces) {
  RunSharedContract(4, kDefaultPieceBytes / 8, 8 << 20, {"a", "a", "b", "b"});
}

}  // namespace
}  // namespace hvd
