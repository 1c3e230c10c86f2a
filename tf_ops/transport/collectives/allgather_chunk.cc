// SPDX-License-Identifier: Apache-2.0
// Allgather: every rank sends its chunks to all ranks of its host, and to one
// rank of each other host. That rank relays them within its host.
#include <algorithm>

#include "transport/collectives/chunk.h"

namespace hvd {
namespace {

// Chunk k of the batch has chunk k of every rank that has so many chunks.
class AllgatherChunk final : public Chunk {
 public:
  AllgatherChunk(BatchWork* work, int64_t index)
      : Chunk(work, index), host_(hosts().host[work->rank()]) {
    contributions_.resize(work->size());
    for (int origin = 0; origin < work->size(); ++origin) {
      Contribution& contribution = contributions_[origin];
      const int64_t total = work->element_count(origin);
      contribution.begin = std::min(index * work->chunk_elements(), total);
      contribution.end =
          std::min(contribution.begin + work->chunk_elements(), total);
      // A rank without data still sends its first chunk, because that has its
      // state.
      contribution.exists = contribution.begin < contribution.end || index == 0;
      if (!contribution.exists) continue;
      const int64_t bytes =
          (contribution.end - contribution.begin) * work->element_bytes();
      contribution.block = origin == work->rank()
                               ? AddBlock(bytes)
                               : AddArrival(SenderOf(origin), bytes);
    }
  }

  bool Advance() override {
    bool moved = Sweep(&sends_);
    for (int origin = 0; origin < work_->size(); ++origin) {
      Contribution& contribution = contributions_[origin];
      if (!contribution.awaited ||
          !Arrive(contribution.move, &contribution.block))
        continue;
      contribution.awaited = false;
      --missing_;
      moved = true;
      const Poison poison = Read(contribution.block);
      // Bytes that made no sense have become poison.
      if (IsRelayed(origin)) Label(contribution.block, poison);
      if (!poison) {
        UnpackBlock(contribution.block, origin, contribution.begin,
                    contribution.end);
      }
      Release(contribution.move, &contribution.block);
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
      Contribution& contribution = contributions_[origin];
      if (!contribution.exists || origin == rank) continue;
      contribution.move =
          Receive(SenderOf(origin), PhaseOf(origin), contribution.block);
      contribution.awaited = true;
      ++missing_;
    }
    const Contribution& own = contributions_[rank];
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
  struct Contribution {
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
  // Whether this rank relays the origin's contribution.
  bool IsRelayed(int origin) const {
    return hosts().host[origin] != host_ &&
           RelayOf(origin, host_) == work_->rank();
  }
  // The rank that sends the origin's contribution to this rank, and the phase.
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

  // Relays contributions in the order of their origins. The receivers expect
  // that order.
  void PassOn() {
    for (; next_relayed_ < work_->size(); ++next_relayed_) {
      const Contribution& contribution = contributions_[next_relayed_];
      if (!contribution.exists || !IsRelayed(next_relayed_)) continue;
      if (contribution.awaited) return;
      SendWithinHost(kPassedOn, contribution.block);
    }
  }

  const int host_;
  std::vector<Contribution> contributions_;  // by origin
  std::vector<MoveId> sends_;
  int missing_ = 0;
  int next_relayed_ = 0;  // an origin
};

}  // namespace

std::unique_ptr<Chunk> NewAllgatherChunk(BatchWork* work, int64_t index) {
  return std::make_unique<AllgatherChunk>(work, index);
}

}  // namespace hvd
