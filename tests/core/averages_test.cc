// SPDX-License-Identifier: Apache-2.0
// Averages over many hosts: with ranks as threads, and by arithmetic alone
// where that would be too many threads.
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "cpu/float16.h"
#include "harness.h"
#include "shared_contract.h"
#include "thread_backend.h"
#include "transport/collectives/batch_work.h"
#include "transport_contract.h"

namespace hvd {
namespace {

TEST(AveragesOver8HostsOf2) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < 16; ++rank)
    hosts.push_back(std::to_string(rank / 2));
  RunShared(AverageCases(), 16, ContractOptions(4096, 1 << 20), hosts);
}

TEST(AveragesOverHostsOf1And2And7) {
  RunShared(AverageCases(), 10, ContractOptions(4096, 1 << 20),
            {"a", "b", "b", "c", "c", "c", "c", "c", "c", "c"});
}

// Of a rank that only computes.
class IdleWire final : public Wire {
 public:
  explicit IdleWire(HostMap hosts) : hosts_(std::move(hosts)) {}
  int rank() const override { return 0; }
  int size() const override { return static_cast<int>(hosts_.host.size()); }
  StagingPool& staging() override { return staging_; }
  const HostMap& hosts() const override { return hosts_; }
  bool zero_copy(int) const override { return false; }
  MoveId Send(int, uint32_t, const void*, size_t) override { return 0; }
  MoveId Receive(int, uint32_t, void*, size_t) override { return 0; }
  bool Test(MoveId) override { return false; }
  Status status() const override { return Status::Ok(); }
  void Abandon(std::vector<StagingBuffer>) override {}

 private:
  const HostMap hosts_;
  HeapStagingPool staging_;
};

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
    IdleWire wire(MakeHostMap(order));
    Batch batch;
    batch.dtype = batch.wire_dtype = DataType::kFloat16;
    batch.reduce_op = ReduceOp::kAverage;
    batch.segments = {{&half, &result, 1}};
    const BatchWork work(std::move(batch), 0, 1024, &wire);
    auto* partial = reinterpret_cast<std::byte*>(&partials[host]);
    work.ReduceWithinHost(
        0, 1, std::vector<const std::byte*>(sizes[host], block), 0, partial);
    blocks.push_back(partial);
  }
  IdleWire wire(MakeHostMap(keys));
  Batch batch;
  batch.dtype = batch.wire_dtype = DataType::kFloat16;
  batch.reduce_op = ReduceOp::kAverage;
  batch.segments = {{&half, &result, 1}};
  const BatchWork work(std::move(batch), 0, 1024, &wire);
  work.ReduceAcrossHosts(1, blocks, reinterpret_cast<std::byte*>(&result));
  return ToFloat(Float16{result});
}

TEST(AveragesOver1000RanksOnAHundredHostsAreTheirValue) {
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
