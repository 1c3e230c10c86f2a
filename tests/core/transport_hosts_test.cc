// SPDX-License-Identifier: Apache-2.0
// Transports of jobs that span hosts: the contract.
#include <mutex>
#include <vector>

#include "adasum_call.h"
#include "harness.h"
#include "shared_contract.h"

namespace hvd {
namespace {

// The thread sanitizer sees as much with the hosts of the two cases below.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST(ContractOf2HostsOf2) {
  RunSharedContract(4, 1024, 1 << 20, {"a", "a", "b", "b"});
}
TEST(ContractOfRanksDealtOutOverHosts) {
  RunSharedContract(4, 4096, 1 << 20, {"a", "b", "a", "b"});
}
TEST(ContractOfAHostAndARank) {
  RunSharedContract(3, 4096, 1 << 20, {"a", "a", "b"});
}
#endif
TEST(ContractOfHostsOfDifferentSizes) {
  RunSharedContract(6, 1024, 1 << 20, {"a", "b", "b", "c", "b", "c"});
}
TEST(ContractOfHostsWithLittleMemory) {
  RunSharedContract(4, 4096, 65536, {"a", "a", "b", "b"});
}

// The first outputs of each rank that a job had. Those of others must be equal.
std::mutex adasum_mutex;
std::vector<std::vector<char>> adasum_bits;

void AdasumBits(ContractRank* self) {
  auto transport = self->NewTransport();
  Batch head;
  head.dtype = head.wire_dtype = DataType::kFloat64;
  AdasumCall call(*transport, head, {3, 9000, 1100});
  call.Run(transport.get());
  EXPECT_EQ(call.status().message(), "");
  std::lock_guard<std::mutex> lock(adasum_mutex);
  if (adasum_bits.empty()) adasum_bits = call.out();
  EXPECT_TRUE(adasum_bits == call.out());
}

// Other than sums, which are formed within each host first.
TEST(AdasumDependsOnNeitherHostsNorChunks) {
  const std::vector<ContractCase> cases = {{"AdasumBits", AdasumBits}};
  for (const std::vector<std::string>& hosts :
       std::vector<std::vector<std::string>>{{},
                                             {"a", "a", "b", "b", "b"},
                                             {"a", "b", "a", "b", "c"},
                                             {"a", "b", "c", "d", "e"}}) {
    for (int64_t chunk_bytes : {1024, 65536}) {
      RunShared(cases, 5, ContractOptions(chunk_bytes, 1 << 20), hosts);
    }
  }
}

}  // namespace
}  // namespace hvd
