// SPDX-License-Identifier: Apache-2.0
// Allgather: every rank sends its own pieces to all.
#include <algorithm>

#include "transport/piece.h"

namespace hvd {
namespace {

// Piece k of the batch is piece k of every rank that has so many.
class AllgatherPiece final : public Piece {
 public:
  AllgatherPiece(BatchWork* work, int64_t index) : Piece(work, index) {
    parts_.resize(work->size());
    for (int origin = 0; origin < work->size(); ++origin) {
      Part& part = parts_[origin];
      const int64_t total = work->element_count(origin);
      part.begin = std::min(index * work->piece_elements(), total);
      part.end = std::min(part.begin + work->piece_elements(), total);
      // A rank with nothing to give still tells in its first piece how it is.
      part.exists = part.begin < part.end || index == 0;
      if (!part.exists) continue;
      const int64_t bytes = (part.end - part.begin) * work->element_bytes();
      part.block = origin == work->rank() ? AddBlock(bytes) : AddArrival(bytes);
    }
  }

  bool Advance() override {
    bool moved = Sweep(&sends_);
    for (int origin = 0; origin < work_->size(); ++origin) {
      Part& part = parts_[origin];
      if (!part.awaited || !Arrive(part.move, &part.block)) continue;
      part.awaited = false;
      --missing_;
      moved = true;
      if (!Read(part.block)) {
        UnpackBlock(part.block, origin, part.begin, part.end);
      }
      Release(part.move, &part.block);
    }
    output_done_ = missing_ == 0;
    finished_ = output_done_ && sends_.empty();
    return moved;
  }

 protected:
  void Post() override {
    const int rank = work_->rank();
    for (int i = 1; i < work_->size(); ++i) {
      const int origin = (rank + i) % work_->size();
      Part& part = parts_[origin];
      if (!part.exists) continue;
      part.move = Receive(origin, 0, part.block);
      part.awaited = true;
      ++missing_;
    }
    const Part& own = parts_[rank];
    if (!own.exists) return;
    PackBlock(own.block, own.begin, own.end);
    for (int i = 1; i < work_->size(); ++i) {
      sends_.push_back(Send((rank + i) % work_->size(), 0, own.block));
    }
    UnpackBlock(own.block, rank, own.begin, own.end);
  }

 private:
  struct Part {
    int64_t begin = 0;  // elements of its origin
    int64_t end = 0;
    Block block;
    bool exists = false;
    bool awaited = false;
    MoveId move = 0;
  };

  std::vector<Part> parts_;  // by origin
  std::vector<MoveId> sends_;
  int missing_ = 0;
};

}  // namespace

std::unique_ptr<Piece> NewAllgatherPiece(BatchWork* work, int64_t index) {
  return std::make_unique<AllgatherPiece>(work, index);
}

}  // namespace hvd
