// SPDX-License-Identifier: Apache-2.0
// Every piece of rows has an owner. The ranks' rows go there. It adds them up,
// and sends the result to all.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "transport/collectives/chunk.h"
#include "transport/collectives/sparse_phase.h"

namespace hvd {
namespace {

class SparseOwnersPhase final : public SparsePhase {
 public:
  SparseOwnersPhase(BatchWork* work,
                    const std::shared_ptr<const SparsePlan>& plan,
                    const std::vector<size_t>& segments, Next next)
      : SparsePhase(
            work, plan, segments,
            plan->Cut(segments, ElementsOnWire(*work, BlockBytes(*work)),
                      work->size()),
            std::move(next)) {}

  int64_t chunk_count() const override {
    const int64_t size = work()->size();
    return std::max((piece_count() + size - 1) / size, int64_t{1});
  }
  std::unique_ptr<Chunk> NewChunk(int64_t index) override;

  // A chunk has one of each owner.
  const SparsePiece& PieceOf(int owner, int64_t chunk) const {
    return piece(chunk * work()->size() + owner);
  }

  using SparsePhase::BlockBytes;

 private:
  // A rank has a block for each owner, and one for the result. Without
  // zero-copy as many arrive.
  static int64_t BlockBytes(const BatchWork& work) {
    return work.chunk_bytes() / (2 * work.size());
  }
};

class SparseOwnersChunk final : public Chunk {
 public:
  SparseOwnersChunk(SparseOwnersPhase* phase, int64_t index)
      : Chunk(phase, index),
        sparse_(phase),
        own_piece_(phase->PieceOf(work_->rank(), index)) {
    const int rank = work_->rank();
    peers_.resize(static_cast<size_t>(work_->size()));
    for (int peer = 0; peer < work_->size(); ++peer) {
      Peer& at = peers_[peer];
      const SparsePiece& piece = phase->PieceOf(peer, index);
      // A rank without data still sends its first block, because that has its
      // state.
      const int64_t bytes = phase->BlockBytes(piece, rank);
      at.sends = bytes > 0 || index == 0;
      if (at.sends) at.rows = AddBlock(bytes);
      if (peer == rank) continue;
      const int64_t arriving = phase->BlockBytes(own_piece_, peer);
      at.contributes = arriving > 0 || index == 0;
      if (at.contributes) at.contribution = AddArrival(peer, arriving);
      const int64_t owned = phase->ResultBytes(piece);
      at.owns = owned > 0 || index == 0;
      if (at.owns) at.result = AddArrival(peer, owned);
    }
    const int64_t owned = phase->ResultBytes(own_piece_);
    owns_ = owned > 0 || index == 0;
    if (owns_) result_ = AddBlock(owned);
  }

  bool Advance() override {
    bool moved = Sweep(&sends_);
    moved |= CollectContributions();
    if (missing_contributions_ == 0 && !has_merged_) {
      Merge();
      moved = true;
    }
    moved |= CollectResults();
    output_done_ = has_merged_ && missing_results_ == 0;
    finished_ = output_done_ && sends_.empty();
    return moved;
  }

 protected:
  void Post() override {
    const int rank = work_->rank();
    for (int i = 0; i < work_->size(); ++i) {
      const int peer = (rank + i) % work_->size();
      Peer& at = peers_[peer];
      if (at.contributes) {
        at.arriving = Receive(peer, kRows, at.contribution);
        ++missing_contributions_;
      }
      if (at.owns) {
        at.result_arriving = Receive(peer, kResult, at.result);
        ++missing_results_;
      }
    }
    // This rank's own rows come last: the others wait for theirs.
    for (int i = 1; i <= work_->size(); ++i) {
      const int owner = (rank + i) % work_->size();
      const Peer& at = peers_[owner];
      if (!at.sends) continue;
      const SegmentMap rows =
          sparse_->plan().MapOf(sparse_->PieceOf(owner, index_), rank);
      PackBlock(at.rows, rows, 0, rows.total());
      if (owner != rank) sends_.push_back(Send(owner, kRows, at.rows));
    }
  }

 private:
  enum Hop { kRows = 0, kResult = 1 };

  struct Peer {
    Block rows;          // of this rank, for that owner
    Block contribution;  // of that rank, for this owner
    Block result;        // of that owner
    bool sends = false, contributes = false, owns = false;
    bool has_contributed = false;
    MoveId arriving = 0, result_arriving = 0;
  };

  bool CollectContributions() {
    bool moved = false;
    for (Peer& peer : peers_) {
      if (!peer.contributes || peer.has_contributed ||
          !Arrive(peer.arriving, &peer.contribution)) {
        continue;
      }
      peer.has_contributed = true;
      Read(peer.contribution);  // poison becomes the batch's
      --missing_contributions_;
      moved = true;
    }
    return moved;
  }

  // What the result is, or why there is none.
  void Merge() {
    has_merged_ = true;
    if (owns_) {
      const Poison poison = work_->poison();
      if (!poison) sparse_->Merge(own_piece_, Blocks(), Payload(result_));
      Label(result_, poison);
      for (int i = 1; i < work_->size(); ++i) {
        const int peer = (work_->rank() + i) % work_->size();
        sends_.push_back(Send(peer, kResult, result_));
      }
      if (!poison) Unpack(own_piece_, result_);
    }
    for (Peer& peer : peers_) {
      if (peer.contributes) Release(peer.arriving, &peer.contribution);
    }
  }

  std::vector<const std::byte*> Blocks() const {
    std::vector<const std::byte*> blocks;
    for (int rank = 0; rank < work_->size(); ++rank) {
      const Peer& peer = peers_[rank];
      const Block& block =
          rank == work_->rank() ? peer.rows : peer.contribution;
      blocks.push_back(block.payload_bytes > 0 ? Content(block) : nullptr);
    }
    return blocks;
  }

  bool CollectResults() {
    bool moved = false;
    for (int owner = 0; owner < work_->size(); ++owner) {
      Peer& peer = peers_[owner];
      if (!peer.owns || !Arrive(peer.result_arriving, &peer.result)) continue;
      peer.owns = false;
      --missing_results_;
      moved = true;
      if (!Read(peer.result)) {
        Unpack(sparse_->PieceOf(owner, index_), peer.result);
      }
      Release(peer.result_arriving, &peer.result);
    }
    return moved;
  }

  void Unpack(const SparsePiece& piece, const Block& block) {
    const SegmentMap rows = sparse_->plan().MapOf(piece);
    UnpackBlock(block, rows, 0, rows.total());
  }

  SparseOwnersPhase* const sparse_;
  const SparsePiece& own_piece_;
  std::vector<Peer> peers_;  // by rank; this rank's has its own rows
  Block result_;
  bool owns_ = false;
  bool has_merged_ = false;
  std::vector<MoveId> sends_;
  int missing_contributions_ = 0, missing_results_ = 0;
};

std::unique_ptr<Chunk> SparseOwnersPhase::NewChunk(int64_t index) {
  return std::make_unique<SparseOwnersChunk>(this, index);
}

}  // namespace

std::unique_ptr<Phase> NewSparseOwnersPhase(
    BatchWork* work, std::shared_ptr<const SparsePlan> plan,
    const std::vector<size_t>& segments, Phase::Next next) {
  return std::make_unique<SparseOwnersPhase>(work, plan, segments,
                                             std::move(next));
}

}  // namespace hvd
