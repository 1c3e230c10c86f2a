// SPDX-License-Identifier: Apache-2.0
// Broadcast: a binomial tree over hosts, from the root's host. Ranks forward
// from staging memory. Within a host all ranks get the data from the host's
// head.
#include <algorithm>

#include "transport/collectives/chunk.h"

namespace hvd {
namespace {

class BroadcastChunk final : public Chunk {
 public:
  BroadcastChunk(BatchWork* work, int64_t index)
      : Chunk(work, index), host_(hosts().host[work->rank()]) {
    const int64_t total = work->element_count(work->rank());
    begin_ = std::min(index * work->chunk_elements(), total);
    end_ = std::min(begin_ + work->chunk_elements(), total);
    const int64_t bytes = (end_ - begin_) * work->element_bytes();
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
      if (!poison) UnpackBlock(block_, work_->rank(), begin_, end_);
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
    PackBlock(block_, begin_, end_);
    Forward(work_->poison());
    if (!work_->is_detached()) work_->KeepOwn(begin_, end_);
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
  int64_t begin_ = 0;
  int64_t end_ = 0;
  Block block_;
  bool awaited_ = false;
  MoveId receive_ = 0;
  std::vector<MoveId> sends_;
};

}  // namespace

std::unique_ptr<Chunk> NewBroadcastChunk(BatchWork* work, int64_t index) {
  return std::make_unique<BroadcastChunk>(work, index);
}

}  // namespace hvd
