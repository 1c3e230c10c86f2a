// SPDX-License-Identifier: Apache-2.0
// Broadcast: a binomial tree from the root, forwarding out of staging memory.
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
    block_ = AddBlock((end_ - begin_) * work->element_bytes());
  }

  bool Advance() override {
    bool moved = Sweep(&sends_);
    if (awaited_ && Test(receive_)) {
      awaited_ = false;
      moved = true;
      Forward(Read(block_));
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
      return;
    }
    // The parent lacks the lowest bit of this rank's distance to the root.
    receive_ = Receive(AtDistance(distance() & (distance() - 1)), 0, block_);
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
    const int lowest_bit = distance() & -distance();
    int bit = 1;
    while (bit < work_->size() && bit != lowest_bit) bit <<= 1;
    for (bit >>= 1; bit > 0; bit >>= 1) {
      if (distance() + bit >= work_->size()) continue;
      sends_.push_back(Send(AtDistance(distance() + bit), 0, block_));
    }
    if (!poison) UnpackBlock(block_, work_->rank(), begin_, end_);
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
