// SPDX-License-Identifier: Apache-2.0
// Allgather: every rank sends its chunks to all ranks of its host, and to one
// rank of each other host. That rank relays them within its host.
#include <algorithm>
#include <memory>
#include <utility>

#include "transport/collectives/chunk.h"
#include "transport/collectives/range.h"
#include "transport/collectives/sizes_exchange.h"

namespace hvd {
namespace {

class AllgatherPhase final : public Phase {
 public:
  AllgatherPhase(BatchWork* work, const Operands& operands, SegmentMap in,
                 std::vector<SegmentMap> outs, Next next)
      : Phase(work, operands, BytesOfAll(operands, outs), std::move(next)),
        in_(std::move(in)),
        outs_(std::move(outs)),
        plan_(in_.total(), element_bytes(), ChunkBytes(*work)) {
    for (const SegmentMap& out : outs_) plan_.Cover(out.total());
  }

  int64_t chunk_count() const override { return plan_.chunk_count; }
  std::unique_ptr<Chunk> NewChunk(int64_t index) override;

  const SegmentMap& in() const { return in_; }
  const SegmentMap& out(int origin) const {
    return outs_[static_cast<size_t>(origin)];
  }
  // In elements of the origin.
  Range RangeOf(int origin, int64_t index) const {
    return ChunkRange(plan_, out(origin).total(), index);
  }

 private:
  static int64_t BytesOfAll(const Operands& operands,
                            const std::vector<SegmentMap>& outs) {
    int64_t elements = 0;
    for (const SegmentMap& out : outs) elements += out.total();
    return elements * static_cast<int64_t>(SizeOf(operands.dtype));
  }
  // A chunk of every rank is moved at once.
  static int64_t ChunkBytes(const BatchWork& work) {
    return std::min(
        work.chunk_bytes(),
        std::max(work.chunk_bytes() / work.size(), kSmallestGatherChunkBytes));
  }

  const SegmentMap in_;
  const std::vector<SegmentMap> outs_;
  ChunkPlan plan_;
};

// Chunk k of the phase has chunk k of every rank that has so many chunks.
class AllgatherChunk final : public Chunk {
 public:
  AllgatherChunk(AllgatherPhase* phase, int64_t index)
      : Chunk(phase, index),
        allgather_(phase),
        host_(hosts().host[work_->rank()]) {
    contributions_.resize(static_cast<size_t>(work_->size()));
    for (int origin = 0; origin < work_->size(); ++origin) {
      Contribution& contribution = contributions_[origin];
      contribution.range = phase->RangeOf(origin, index);
      // A rank without data still sends its first chunk, because that has its
      // state.
      contribution.exists = !contribution.range.empty() || index == 0;
      if (!contribution.exists) continue;
      const int64_t bytes = contribution.range.size() * phase->element_bytes();
      contribution.block = origin == work_->rank()
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
        UnpackBlock(contribution.block, allgather_->out(origin),
                    contribution.range.begin, contribution.range.end);
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
          Receive(SenderOf(origin), HopOf(origin), contribution.block);
      contribution.awaited = true;
      ++missing_;
    }
    const Contribution& own = contributions_[rank];
    if (!own.exists) return;
    const bool has_data =
        PackBlock(own.block, allgather_->in(), own.range.begin, own.range.end);
    for (int i = 1; i < hosts().host_count(); ++i) {
      const int host = (host_ + i) % hosts().host_count();
      sends_.push_back(Send(RelayOf(rank, host), kOwn, own.block));
    }
    SendWithinHost(kOwn, own.block);
    if (has_data) {
      UnpackBlock(own.block, allgather_->out(rank), own.range.begin,
                  own.range.end);
    }
  }

 private:
  struct Contribution {
    Range range;  // in elements of its origin
    Block block;
    bool exists = false;
    bool awaited = false;
    MoveId move = 0;
  };

  enum Hop { kOwn = 0, kPassedOn = 1 };

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
  // The rank that sends the origin's contribution to this rank, and the hop.
  int SenderOf(int origin) const {
    const bool direct = hosts().host[origin] == host_ || IsRelayed(origin);
    return direct ? origin : RelayOf(origin, host_);
  }
  Hop HopOf(int origin) const {
    return SenderOf(origin) == origin ? kOwn : kPassedOn;
  }

  void SendWithinHost(Hop hop, const Block& block) {
    for (int peer : hosts().ranks[host_]) {
      if (peer != work_->rank()) sends_.push_back(Send(peer, hop, block));
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

  AllgatherPhase* const allgather_;
  const int host_;
  std::vector<Contribution> contributions_;  // by origin
  std::vector<MoveId> sends_;
  int missing_ = 0;
  int next_relayed_ = 0;  // an origin
};

std::unique_ptr<Chunk> AllgatherPhase::NewChunk(int64_t index) {
  return std::make_unique<AllgatherChunk>(this, index);
}

// The phase of the data, once the rows are known.
std::unique_ptr<Phase> NewDataPhase(BatchWork* work, const RankCounts& rows) {
  work->Allocate(rows);
  const Batch& batch = work->batch();
  return NewAllgatherPhase(work, MovedOperands(batch),
                           SegmentMap(CountsOf(batch.segments)),
                           MapsByRank(batch.segments, rows, work->size()), {});
}

}  // namespace

std::unique_ptr<Phase> NewAllgatherPhase(BatchWork* work, Operands operands,
                                         SegmentMap in,
                                         std::vector<SegmentMap> outs,
                                         Phase::Next next) {
  return std::make_unique<AllgatherPhase>(work, std::move(operands),
                                          std::move(in), std::move(outs),
                                          std::move(next));
}

std::unique_ptr<Phase> NewAllgatherFirstPhase(BatchWork* work) {
  const Batch& batch = work->batch();
  if (!batch.rows.empty()) return NewDataPhase(work, batch.rows);
  // Every rank's rows of each segment. They go to all ranks.
  std::vector<int64_t> own;
  for (const Segment& segment : batch.segments) own.push_back(segment.rows);
  auto sizes = std::make_shared<SizesExchange>(std::move(own), *work);
  return NewAllgatherPhase(
      work, sizes->operands(), sizes->PlaceOf(0), sizes->Places(),
      [work, sizes](const Phase& finished) -> std::unique_ptr<Phase> {
        if (finished.is_poisoned() || !sizes->Check(work)) return nullptr;
        return NewDataPhase(work, sizes->rows());
      });
}

}  // namespace hvd
