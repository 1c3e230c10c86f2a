// SPDX-License-Identifier: Apache-2.0
// Alltoall: the ranks tell each other how many rows they send. Then every pair
// of ranks moves its rows directly.
#include <algorithm>
#include <memory>
#include <utility>

#include "core/rows.h"
#include "transport/collectives/chunk.h"
#include "transport/collectives/range.h"
#include "transport/collectives/sizes_exchange.h"

namespace hvd {
namespace {

class AlltoallPhase final : public Phase {
 public:
  AlltoallPhase(BatchWork* work, const Operands& operands,
                std::vector<SegmentMap> ins, std::vector<SegmentMap> outs,
                Next next)
      : Phase(work, operands, BytesOfAll(operands, ins, outs), std::move(next)),
        ins_(std::move(ins)),
        outs_(std::move(outs)),
        // A chunk has a share for each pair.
        plan_(0, element_bytes(), work->chunk_bytes() / work->size()) {
    for (const SegmentMap& in : ins_) plan_.Cover(in.total());
    for (const SegmentMap& out : outs_) plan_.Cover(out.total());
  }

  int64_t chunk_count() const override { return plan_.chunk_count; }
  std::unique_ptr<Chunk> NewChunk(int64_t index) override;

  const SegmentMap& in(int peer) const {
    return ins_[static_cast<size_t>(peer)];
  }
  const SegmentMap& out(int peer) const {
    return outs_[static_cast<size_t>(peer)];
  }
  Range Sent(int peer, int64_t index) const {
    return ChunkRange(plan_, in(peer).total(), index);
  }
  Range Received(int peer, int64_t index) const {
    return ChunkRange(plan_, out(peer).total(), index);
  }

 private:
  static int64_t BytesOfAll(const Operands& operands,
                            const std::vector<SegmentMap>& ins,
                            const std::vector<SegmentMap>& outs) {
    int64_t sent = 0, received = 0;
    for (const SegmentMap& in : ins) sent += in.total();
    for (const SegmentMap& out : outs) received += out.total();
    return std::max(sent, received) *
           static_cast<int64_t>(SizeOf(operands.dtype));
  }

  const std::vector<SegmentMap> ins_;
  const std::vector<SegmentMap> outs_;
  ChunkPlan plan_;
};

// Chunk k has chunk k of every pair that has so many.
class AlltoallChunk final : public Chunk {
 public:
  AlltoallChunk(AlltoallPhase* phase, int64_t index)
      : Chunk(phase, index), alltoall_(phase) {
    pairs_.resize(static_cast<size_t>(work_->size()));
    for (int peer = 0; peer < work_->size(); ++peer) {
      Pair& pair = pairs_[peer];
      pair.sent = phase->Sent(peer, index);
      pair.received = phase->Received(peer, index);
      if (peer == work_->rank()) continue;
      // Without data the first chunk still goes, because it has the state of
      // its sender.
      pair.sends = !pair.sent.empty() || index == 0;
      pair.receives = !pair.received.empty() || index == 0;
      if (pair.sends) pair.out = AddBlock(BytesOf(pair.sent));
      if (pair.receives) pair.in = AddArrival(peer, BytesOf(pair.received));
    }
  }

  bool Advance() override {
    bool moved = Sweep(&sends_);
    for (int peer = 0; peer < work_->size(); ++peer) {
      Pair& pair = pairs_[peer];
      if (!pair.awaited || !Arrive(pair.move, &pair.in)) continue;
      pair.awaited = false;
      --missing_;
      moved = true;
      if (!Read(pair.in)) {
        UnpackBlock(pair.in, alltoall_->out(peer), pair.received.begin,
                    pair.received.end);
      }
      Release(pair.move, &pair.in);
    }
    output_done_ = missing_ == 0;
    finished_ = output_done_ && sends_.empty();
    return moved;
  }

 protected:
  void Post() override {
    const int rank = work_->rank();
    for (int peer = 0; peer < work_->size(); ++peer) {
      Pair& pair = pairs_[peer];
      if (!pair.receives) continue;
      pair.move = Receive(peer, 0, pair.in);
      pair.awaited = true;
      ++missing_;
    }
    // The loop begins with the rank after this one, so that not all ranks send
    // to the same one first.
    for (int i = 1; i < work_->size(); ++i) {
      const int peer = (rank + i) % work_->size();
      const Pair& pair = pairs_[peer];
      if (!pair.sends) continue;
      PackBlock(pair.out, alltoall_->in(peer), pair.sent.begin, pair.sent.end);
      sends_.push_back(Send(peer, 0, pair.out));
    }
    const Pair& own = pairs_[rank];
    if (own.sent.empty() || !phase_->has_memory()) return;
    phase_->packer().CopyOwn(alltoall_->in(rank), alltoall_->out(rank),
                             own.sent.begin, own.sent.end);
    phase_->FailIfNotFinite();
  }

 private:
  // What goes to a rank, and what comes from it.
  struct Pair {
    Range sent, received;  // in elements of the pair
    Block out, in;
    bool sends = false, receives = false;
    bool awaited = false;
    MoveId move = 0;
  };

  int64_t BytesOf(const Range& range) const {
    return range.size() * alltoall_->element_bytes();
  }

  AlltoallPhase* const alltoall_;
  std::vector<Pair> pairs_;  // by rank
  std::vector<MoveId> sends_;
  int missing_ = 0;
};

std::unique_ptr<Chunk> AlltoallPhase::NewChunk(int64_t index) {
  return std::make_unique<AlltoallChunk>(this, index);
}

std::unique_ptr<Phase> NewDataPhase(BatchWork* work,
                                    const RankCounts& received) {
  work->Allocate(received);
  const Batch& batch = work->batch();
  return NewAlltoallPhase(work, MovedOperands(batch),
                          MapsByRank(batch.segments, batch.rows, work->size()),
                          MapsByRank(batch.segments, received, work->size()),
                          {});
}

}  // namespace

std::unique_ptr<Phase> NewAlltoallPhase(BatchWork* work, Operands operands,
                                        std::vector<SegmentMap> ins,
                                        std::vector<SegmentMap> outs,
                                        Phase::Next next) {
  return std::make_unique<AlltoallPhase>(work, operands, std::move(ins),
                                         std::move(outs), std::move(next));
}

std::unique_ptr<Phase> NewAlltoallFirstPhase(BatchWork* work) {
  const Batch& batch = work->batch();
  std::vector<int64_t> sent;
  for (int rank = 0; rank < work->size(); ++rank) {
    for (const std::vector<int64_t>& rows : batch.rows) {
      sent.push_back(rows[static_cast<size_t>(rank)]);
    }
  }
  auto sizes = std::make_shared<SizesExchange>(std::move(sent), *work);
  return NewAlltoallPhase(
      work, sizes->operands(), sizes->Places(), sizes->Places(),
      [work, sizes](const Phase& finished) -> std::unique_ptr<Phase> {
        if (finished.is_poisoned() || !sizes->Check(work)) return nullptr;
        return NewDataPhase(work, sizes->rows());
      });
}

}  // namespace hvd
