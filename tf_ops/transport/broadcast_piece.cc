// SPDX-License-Identifier: Apache-2.0
// Broadcast: a binomial tree from the root, forwarding out of staging memory;
// where the wire lends, all read the root's.
#include <algorithm>

#include "transport/piece.h"

namespace hvd {
namespace {

class BroadcastPiece final : public Piece {
 public:
  BroadcastPiece(BatchWork* work, int64_t index) : Piece(work, index) {
    const int64_t total = work->element_count(work->rank());
    begin_ = std::min(index * work->piece_elements(), total);
    end_ = std::min(begin_ + work->piece_elements(), total);
    const int64_t bytes = (end_ - begin_) * work->element_bytes();
    block_ = distance() == 0 ? AddBlock(bytes) : AddArrival(bytes);
  }

  bool Advance() override {
    bool moved = Sweep(&sends_);
    if (awaited_ && Arrive(receive_, &block_)) {
      awaited_ = false;
      moved = true;
      const Poison poison = Read(block_);
      if (!lends()) Forward(poison);
      if (!poison) UnpackBlock(block_, work_->rank(), begin_, end_);
      Release(receive_, &block_);
    }
    output_done_ = !awaited_;
    finished_ = output_done_ && sends_.empty();
    return moved;
  }

 protected:
  void Post() override {
    if (distance() == 0) {
      PackBlock(block_, begin_, end_);
      Forward(work_->poison());
      if (!work_->is_ghost()) work_->KeepOwn(begin_, end_);
      return;
    }
    // The parent lacks the lowest bit of this rank's distance to the root.
    const int parent = lends() ? 0 : distance() & (distance() - 1);
    receive_ = Receive(AtDistance(parent), 0, block_);
    awaited_ = true;
  }

 private:
  // In ranks, upwards from the root.
  int distance() const {
    return (work_->rank() - work_->batch().root + work_->size()) %
           work_->size();
  }
  int AtDistance(int distance) const {
    return (work_->batch().root + distance) % work_->size();
  }

  // To the children, the one with the largest subtree first. A rank whose own
  // batch is a ghost hands on what it got all the same.
  void Forward(const Poison& poison) {
    Label(block_, poison);
    if (lends()) {
      for (int other = 1; other < work_->size(); ++other) {
        sends_.push_back(Send(AtDistance(other), 0, block_));
      }
      return;
    }
    const int lowest_bit = distance() & -distance();
    int bit = 1;
    while (bit < work_->size() && bit != lowest_bit) bit <<= 1;
    for (bit >>= 1; bit > 0; bit >>= 1) {
      if (distance() + bit >= work_->size()) continue;
      sends_.push_back(Send(AtDistance(distance() + bit), 0, block_));
    }
  }

  int64_t begin_ = 0;
  int64_t end_ = 0;
  Block block_;
  bool awaited_ = false;
  MoveId receive_ = 0;
  std::vector<MoveId> sends_;
};

}  // namespace

std::unique_ptr<Piece> NewBroadcastPiece(BatchWork* work, int64_t index) {
  return std::make_unique<BroadcastPiece>(work, index);
}

}  // namespace hvd
