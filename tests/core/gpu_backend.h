// SPDX-License-Identifier: Apache-2.0
// GpuBackend: transports whose batches are on a GPU of the rank's own, for
// the contract.
#ifndef HVD_TESTS_CORE_GPU_BACKEND_H_
#define HVD_TESTS_CORE_GPU_BACKEND_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/host_map.h"
#include "forwarding_backend.h"
#include "on_gpu.h"
#include "test_gpu.h"

namespace hvd {

class GpuBackend final : public ForwardingBackend {
 public:
  // The lane of a set, over its host transport.
  using NewLane = std::function<std::unique_ptr<Transport>(
      Transport* host, const HostMap& hosts,
      const std::shared_ptr<TestGpu>& gpu)>;

  // See OnGpu.
  GpuBackend(std::unique_ptr<Backend> base, NewLane new_lane,
             bool reads_in_stream_order = false)
      : ForwardingBackend(std::move(base)),
        new_lane_(std::move(new_lane)),
        reads_in_stream_order_(reads_in_stream_order) {}
  Result<std::unique_ptr<Transport>> NewTransport(
      int slot, const ProcessSet& process_set) override {
    auto host = ForwardingBackend::NewTransport(slot, process_set);
    if (!host.ok()) return host.status();
    std::vector<int> hosts;
    for (const int rank : process_set.ranks)
      hosts.push_back(topology().host_of[rank]);
    auto lane = new_lane_(host.value().get(), MakeHostMap(hosts), gpu_);
    return std::unique_ptr<Transport>(
        std::make_unique<OnGpu>(std::move(host.value()), gpu_, std::move(lane),
                                reads_in_stream_order_));
  }

 private:
  // It outlives what lanes share.
  const std::shared_ptr<TestGpu> gpu_ = std::make_shared<TestGpu>();
  const NewLane new_lane_;
  const bool reads_in_stream_order_;
};

}  // namespace hvd

#endif  // HVD_TESTS_CORE_GPU_BACKEND_H_
