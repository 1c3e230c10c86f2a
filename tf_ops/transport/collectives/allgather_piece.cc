// SPDX-License-Identifier: Apache-2.0
// Allgather: every rank sends its pieces to all ranks of its host, and to one
// rank of each other host. That rank relays them within its host.
#include <algorithm>

#include "transport/collectives/piece.h"

namespace hvd {
namespace {

// Piece k of the batch has piece k of every rank that has so many pieces.
class AllgatherPiece final : public Piece {
 public:
  AllgatherPiece(BatchWork* work, int64_t index)
      : Piece(work, index), host_(hosts().host[work->rank()]) {
    parts_.resize(work->size());
    for (int origin = 0; origin < work->size(); ++origin) {
      Part& part = parts_[origin];
      const int64_t total = work->element_count(origin);
      part.begin = std::min(index * work->piece_elements(), total);
      part.end = std::min(part.begin + work->piece_elements(), total);
      // A rank without data still sends its first piece, because that has its
      // state.
      part.exists = part.begin < part.end || index == 0;
      if (!part.exists) continue;
      const int64_t bytes = (part.end - part.begin) * work->element_bytes();
      part.block = origin == work->rank() ? AddBlock(bytes)
                                          : AddArrival(SenderOf(origin), bytes);
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
      const Poison poison = Read(part.block);
      // Bytes that made no sense have become poison.
      if (IsRelayed(origin)) Label(part.block, poison);
      if (!poison) {
        UnpackBlock(part.block, origin, part.begin, part.end);
      }
      Release(part.move, &part.block);
    }
    PassOn();
    output_done_ = missing_ == 0;
    finished_ = output_done_ && sends_.empty();
    return moved;
  }

 protected:
  void Post() override {
    const int rank = work_->rank();
    for (int origin = 0; origin < work_->size(); ++origin) {
      Part& part = parts_[origin];
      if (!part.exists || origin == rank) continue;
      part.move = Receive(SenderOf(origin), PhaseOf(origin), part.block);
      part.awaited = true;
      ++missing_;
    }
    const Part& own = parts_[rank];
    if (!own.exists) return;
    PackBlock(own.block, own.begin, own.end);
    for (int i = 1; i < hosts().host_count(); ++i) {
      const int host = (host_ + i) % hosts().host_count();
      sends_.push_back(Send(RelayOf(rank, host), kOwn, own.block));
    }
    SendWithinHost(kOwn, own.block);
    UnpackBlock(own.block, rank, own.begin, own.end);
  }

 private:
  struct Part {
    int64_t begin = 0;  // in elements of its origin
    int64_t end = 0;
    Block block;
    bool exists = false;
    bool awaited = false;
    MoveId move = 0;
  };

  enum Phase { kOwn = 0, kPassedOn = 1 };

  // The rank of `host` that the origin sends to. It is not the origin's host.
  int RelayOf(int origin, int host) const {
    const std::vector<int>& ranks = hosts().ranks[host];
    return ranks[static_cast<size_t>(hosts().place[origin]) % ranks.size()];
  }
  // Whether this rank relays the origin's part.
  bool IsRelayed(int origin) const {
    return hosts().host[origin] != host_ &&
           RelayOf(origin, host_) == work_->rank();
  }
  // The rank that sends the origin's part to this rank, and the phase.
  int SenderOf(int origin) const {
    const bool direct = hosts().host[origin] == host_ || IsRelayed(origin);
    return direct ? origin : RelayOf(origin, host_);
  }
  Phase PhaseOf(int origin) const {
    return SenderOf(origin) == origin ? kOwn : kPassedOn;
  }

  void SendWithinHost(Phase phase, const Block& block) {
    for (int peer : hosts().ranks[host_]) {
      if (peer != work_->rank()) sends_.push_back(Send(peer, phase, block));
    }
  }

  // Relays parts in the order of their origins. The receivers expect that
  // order.
  void PassOn() {
    for (; next_relayed_ < work_->size(); ++next_relayed_) {
      const Part& part = parts_[next_relayed_];
      if (!part.exists || !IsRelayed(next_relayed_)) continue;
      if (part.awaited) return;
      SendWithinHost(kPassedOn, part.block);
    }
  }

  const int host_;
  std::vector<Part> parts_;  // by origin
  std::vector<MoveId> sends_;
  int missing_ = 0;
  int next_relayed_ = 0;  // an origin
};

}  // namespace

std::unique_ptr<Piece> NewAllgatherPiece(BatchWork* work, int64_t index) {
  return std::make_unique<AllgatherPiece>(work, index);
}

}  // namespace hvd
