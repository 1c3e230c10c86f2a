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
TEST(contract_of_2_hosts_of_2) {
  RunSharedContract(4, 1024, 1 << 20, {"a", "a", "b", "b"});
}
TEST(contract_of_ranks_dealt_out_over_hosts) {
  RunSharedContract(4, 4096, 1 << 20, {"a", "b", "a", "b"});
}
TEST(contract_of_a_host_and_a_rank) {
  RunSharedContract(3, 4096, 1 << 20, {"a", "a", "b"});
}
#endif
TEST(contract_of_hosts_of_different_sizes) {
  RunSharedContract(6, 1024, 1 << 20, {"a", "b", "b", "c", "b", "c"});
}
TEST(contract_of_hosts_with_little_memory) {
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
TEST(adasum_depends_on_neither_hosts_nor_chunks) {
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
