// SPDX-License-Identifier: Apache-2.0
// Averages over many hosts: with ranks as threads, and by arithmetic alone
// where that would be too many threads.
#include <numeric>
#include <vector>

#include "cpu/float16.h"
#include "harness.h"
#include "shared_contract.h"
#include "transport/collectives/reducer.h"
#include "transport_contract.h"

namespace hvd {
namespace {

TEST(averages_over_8_hosts_of_2) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < 16; ++rank)
    hosts.push_back(std::to_string(rank / 2));
  RunShared(AverageCases(), 16, ContractOptions(4096, 1 << 20), hosts);
}

TEST(averages_over_hosts_of_1_and_2_and_7) {
  RunShared(AverageCases(), 10, ContractOptions(4096, 1 << 20),
            {"a", "b", "b", "c", "c", "c", "c", "c", "c", "c"});
}

// Averages one value in half precision.
Operands OneHalf(const uint16_t* in, uint16_t* out) {
  Operands operands;
  operands.dtype = operands.wire_dtype = DataType::kFloat16;
  operands.reduce_op = ReduceOp::kAverage;
  operands.segments = {{in, out, 1}};
  return operands;
}

// The average when every rank has `value`, of as many ranks as `sizes` says for
// each host.
float AverageOverHosts(const std::vector<int>& sizes, float value) {
  std::vector<int> keys;
  for (size_t host = 0; host < sizes.size(); ++host) {
    keys.insert(keys.end(), sizes[host], static_cast<int>(host));
  }
  const uint16_t half = ToFloat16(value).bits;
  const auto* block = reinterpret_cast<const std::byte*>(&half);
  uint16_t result = 0;
  std::vector<uint16_t> partials(sizes.size());
  std::vector<const std::byte*> blocks;
  for (size_t host = 0; host < sizes.size(); ++host) {
    // The host that computes comes first.
    std::vector<int> order(keys);
    std::rotate(
        order.begin(),
        order.begin() + std::accumulate(sizes.begin(), sizes.begin() + host, 0),
        order.end());
    auto* partial = reinterpret_cast<std::byte*>(&partials[host]);
    const Packer packer(OneHalf(&half, &result), nullptr, 2);
    const Reducer reducer(&packer, MakeHostMap(order));
    const SegmentMap map({1});
    reducer.ReduceWithinHost(
        {map, 0, 1, std::vector<const std::byte*>(sizes[host], block)},
        partial);
    blocks.push_back(partial);
  }
  const Packer packer(OneHalf(&half, &result), nullptr, 2);
  const Reducer reducer(&packer, MakeHostMap(keys));
  reducer.ReduceAcrossHosts(1, blocks, reinterpret_cast<std::byte*>(&result));
  return ToFloat(Float16{result});
}

TEST(averages_over_1000_ranks_on_a_hundred_hosts_are_their_value) {
  std::vector<int> uneven;
  for (int i = 0; i < 125; ++i) uneven.push_back(1 + (i * 7) % 15);
  for (const std::vector<int>& sizes : {std::vector<int>(125, 8), uneven}) {
    for (float value : {1e-7F, 3e-6F, 1e-5F, 1e-4F, 1.0F, 6e4F}) {
      EXPECT_EQ(AverageOverHosts(sizes, value), ToFloat(ToFloat16(value)));
      EXPECT_EQ(AverageOverHosts(sizes, -value), ToFloat(ToFloat16(-value)));
    }
  }
}

}  // namespace
}  // namespace hvd
