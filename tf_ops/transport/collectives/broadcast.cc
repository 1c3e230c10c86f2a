// SPDX-License-Identifier: Apache-2.0
// Broadcast: a binomial tree over hosts, from the root's host. Ranks forward
// from staging memory. Within a host all ranks get the data from the host's
// head.

#include "transport/collectives/chunk.h"
#include "transport/collectives/range.h"

namespace hvd {
namespace {

class BroadcastPhase final : public Phase {
 public:
  BroadcastPhase(BatchWork* work, const Operands& operands)
      : Phase(work, operands, BytesOf(operands), {}),
        map_(CountsOf(operands.segments)),
        plan_(map_.total(), element_bytes(), work->chunk_bytes()) {}

  int64_t chunk_count() const override { return plan_.chunk_count; }
  std::unique_ptr<Chunk> NewChunk(int64_t index) override;

  const SegmentMap& map() const { return map_; }
  Range RangeOf(int64_t index) const {
    return ChunkRange(plan_, map_.total(), index);
  }

 private:
  const SegmentMap map_;
  const ChunkPlan plan_;
};

class BroadcastChunk final : public Chunk {
 public:
  BroadcastChunk(BroadcastPhase* phase, int64_t index)
      : Chunk(phase, index),
        host_(hosts().host[work_->rank()]),
        map_(phase->map()),
        range_(phase->RangeOf(index)) {
    const int64_t bytes = range_.size() * phase->element_bytes();
    block_ = is_root() ? AddBlock(bytes) : AddArrival(parent(), bytes);
  }

  bool Advance() override {
    bool moved = Sweep(&sends_);
    if (awaited_ && Arrive(receive_, &block_)) {
      awaited_ = false;
      moved = true;
      const Poison poison = Read(block_);
      // A rank forwards what it got even if its own batch is detached.
      if (is_head()) Forward(poison);
      if (!poison) UnpackBlock(block_, map_, range_.begin, range_.end);
      Release(receive_, &block_);
    }
    output_done_ = !awaited_;
    finished_ = output_done_ && sends_.empty();
    return moved;
  }

 protected:
  void Post() override {
    if (!is_root()) {
      receive_ = Receive(parent(), 0, block_);
      awaited_ = true;
      return;
    }
    PackBlock(block_, map_, range_.begin, range_.end);
    Forward(work_->poison());
    if (!phase_->has_memory()) return;
    phase_->packer().CopyOwn(map_, map_, range_.begin, range_.end);
  }

 private:
  bool is_root() const { return work_->rank() == work_->batch().root; }
  // The head of a host: the other ranks of the host get the data from it.
  int HeadOf(int host) const {
    const int root = work_->batch().root;
    return hosts().host[root] == host ? root : hosts().ranks[host].front();
  }
  bool is_head() const { return HeadOf(host_) == work_->rank(); }

  // The number of hosts from the root's host upwards to this one.
  int distance() const {
    const int count = hosts().host_count();
    return (host_ - hosts().host[work_->batch().root] + count) % count;
  }
  int HeadAtDistance(int distance) const {
    const int root_host = hosts().host[work_->batch().root];
    return HeadOf((root_host + distance) % hosts().host_count());
  }
  int parent() const {
    if (!is_head()) return HeadOf(host_);
    // The sender's distance is this host's without its lowest bit.
    return HeadAtDistance(distance() & (distance() - 1));
  }

  // Sends to the hosts below this one, the one with the largest subtree first.
  // Then it sends to the other ranks of this host.
  void Forward(const Poison& poison) {
    Label(block_, poison);
    const int count = hosts().host_count();
    const int lowest_bit = distance() & -distance();
    int bit = 1;
    while (bit < count && bit != lowest_bit) bit <<= 1;
    for (bit >>= 1; bit > 0; bit >>= 1) {
      if (distance() + bit >= count) continue;
      sends_.push_back(Send(HeadAtDistance(distance() + bit), 0, block_));
    }
    for (int peer : hosts().ranks[host_]) {
      if (peer != work_->rank()) sends_.push_back(Send(peer, 0, block_));
    }
  }

  const int host_;
  const SegmentMap& map_;
  const Range range_;
  Block block_;
  bool awaited_ = false;
  MoveId receive_ = 0;
  std::vector<MoveId> sends_;
};

std::unique_ptr<Chunk> BroadcastPhase::NewChunk(int64_t index) {
  return std::make_unique<BroadcastChunk>(this, index);
}

}  // namespace

std::unique_ptr<Phase> NewBroadcastFirstPhase(BatchWork* work) {
  return std::make_unique<BroadcastPhase>(work, MovedOperands(work->batch()));
}

}  // namespace hvd
