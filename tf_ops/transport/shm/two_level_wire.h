// SPDX-License-Identifier: Apache-2.0
// TwoLevelWire: the moves of a process set that spans hosts. They use shared
// memory within a host and another wire between hosts.
#ifndef HVD_TRANSPORT_SHM_TWO_LEVEL_WIRE_H_
#define HVD_TRANSPORT_SHM_TWO_LEVEL_WIRE_H_

#include <memory>
#include <vector>

#include "transport/shm/shm_endpoint.h"
#include "transport/shm/shm_wire.h"
#include "transport/wire.h"

namespace hvd {

// Staging memory is the rank's arena, also for moves between hosts. So data
// that has come from another host can be borrowed to ranks of this host.
class TwoLevelWire final : public Wire {
 public:
  // local_ranks has the local rank of each member on this host, and -1 for the
  // others. `across` is a wire of the same set. It is used between hosts only.
  TwoLevelWire(std::shared_ptr<ShmEndpoint> endpoint, int slot, HostMap hosts,
               std::vector<int> local_ranks, std::unique_ptr<Wire> across,
               StagingBuffer reserve);
  ~TwoLevelWire() override;

  int rank() const override { return across_->rank(); }
  int size() const override { return across_->size(); }
  StagingPool& staging() override { return *staging_; }
  StoreChoice* store_choice() override { return &endpoint_->store_choice(); }
  const HostMap& hosts() const override { return hosts_; }
  bool zero_copy(int peer) const override { return local_ranks_[peer] >= 0; }
  MoveId Send(int peer, uint32_t tag, const void* data, size_t bytes) override;
  MoveId Receive(int peer, uint32_t tag, void* data, size_t bytes) override;
  void Poll() override;
  bool Test(MoveId id) override;
  Borrowed Arrived(MoveId id) const override;
  void Release(MoveId id) override;
  Status status() const override;
  void Abandon(std::vector<StagingBuffer> memory) override;

 private:
  const std::shared_ptr<ShmEndpoint> endpoint_;
  const uint32_t slot_;
  const HostMap hosts_;
  const std::vector<int> local_ranks_;
  const std::unique_ptr<Wire> across_;
  std::unique_ptr<ShmSetStaging> staging_;
  std::shared_ptr<void> abandoned_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_SHM_TWO_LEVEL_WIRE_H_
