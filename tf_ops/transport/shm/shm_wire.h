// SPDX-License-Identifier: Apache-2.0
// ShmWire: the moves of one process set whose ranks share a host.
#ifndef HVD_TRANSPORT_SHM_SHM_WIRE_H_
#define HVD_TRANSPORT_SHM_SHM_WIRE_H_

#include <memory>
#include <vector>

#include "transport/shm/shm_endpoint.h"
#include "transport/wire.h"

namespace hvd {

// The rank's arena, with a part of it for this set alone. So the set's oldest
// batch gets memory, whatever other sets do.
class ShmSetStaging final : public StagingPool {
 public:
  ShmSetStaging(ShmArena* arena, StagingBuffer reserve);
  ~ShmSetStaging() override;
  StagingBuffer Take(size_t bytes, Urgency urgency) override;
  void Give(StagingBuffer buffer) override;

 private:
  ShmArena* const arena_;
  StagingBuffer reserve_;
  bool reserve_is_taken_ = false;
};

class ShmWire final : public Wire {
 public:
  // `ranks` are the members' local ranks. This rank has the place `rank` among
  // them.
  ShmWire(std::shared_ptr<ShmEndpoint> endpoint, int slot,
          std::vector<int> ranks, int rank, StagingBuffer reserve);
  ~ShmWire() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  StagingPool& staging() override { return *staging_; }
  StoreChoice* store_choice() override { return &endpoint_->store_choice(); }
  const HostMap& hosts() const override { return hosts_; }
  bool zero_copy(int) const override { return true; }
  MoveId Send(int peer, uint32_t tag, const void* data, size_t bytes) override;
  MoveId Receive(int peer, uint32_t tag, void* data, size_t bytes) override;
  void Poll() override { endpoint_->Poll(); }
  bool Test(MoveId id) override { return endpoint_->Test(id); }
  Borrowed Arrived(MoveId id) const override { return endpoint_->Arrived(id); }
  void Release(MoveId id) override { endpoint_->Release(id); }
  Status status() const override { return endpoint_->status(); }
  void Abandon(std::vector<StagingBuffer> memory) override;

 private:
  const std::shared_ptr<ShmEndpoint> endpoint_;
  const uint32_t slot_;
  const std::vector<int> ranks_;
  const int rank_;
  const HostMap hosts_;
  std::unique_ptr<ShmSetStaging> staging_;
  std::shared_ptr<void> abandoned_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_SHM_SHM_WIRE_H_
