// SPDX-License-Identifier: Apache-2.0
// Piece: a part of a staged batch on its way, as a state machine.
#ifndef HVD_TRANSPORT_PIECE_H_
#define HVD_TRANSPORT_PIECE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/batch_work.h"
#include "transport/staging_pool.h"
#include "transport/wire.h"

namespace hvd {

// What stands before the payload of every message. A rank that has no data to
// send sends a header alone, with the reason.
struct BlockHeader {
  uint32_t sequence;  // of the batch, its low 32 bits
  uint32_t piece;
  uint32_t payload_bytes;
  uint16_t origin;  // of the poison: rank within the set
  uint8_t code;     // StatusCode
  uint8_t check;    // kHeaderCheck
};
static_assert(sizeof(BlockHeader) == 16);

// Every member of the set runs the same pieces with the same messages, whether
// its batch is alive or a ghost: that is what keeps the set going.
//
// Owner: StagedTransport. Lives no longer than its BatchWork and Wire.
class Piece {
 public:
  Piece(BatchWork* work, int64_t index) : work_(work), index_(index) {}
  virtual ~Piece() = default;
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;

  // What Start must be given at least.
  size_t staging_bytes() const { return staging_bytes_; }
  void Start(StagingBuffer staging);
  // True if anything moved.
  virtual bool Advance() = 0;

  // This rank's output of the piece is complete, or never will be.
  bool output_done() const { return output_done_; }
  // Nothing of it is on the wire any more.
  bool finished() const { return finished_; }
  StagingBuffer TakeStaging() { return std::move(staging_); }

 protected:
  // A header and a payload, in this rank's staging memory or lent by a peer.
  struct Block {
    size_t offset = 0;  // in the staging memory
    int64_t payload_bytes = 0;
    bool is_lent = false;  // it comes from a peer that lends
    Lent lent;
  };

  // Before Start: reserves staging memory for what is sent.
  Block AddBlock(int64_t payload_bytes);
  // The same for what comes from `peer`, which needs none if that lends.
  Block AddArrival(int peer, int64_t payload_bytes);
  virtual void Post() = 0;

  // To be filled.
  std::byte* Payload(const Block& block) {
    return staging_.data.get() + block.offset + sizeof(BlockHeader);
  }
  // To be read.
  const std::byte* Content(const Block& block) const {
    return Begin(block) + sizeof(BlockHeader);
  }
  // Makes the block one with data, or with poison instead.
  void Label(const Block& block, const Poison& poison);
  // Labels the block and fills it with this rank's elements [begin, end),
  // unless the batch is a ghost.
  void PackBlock(const Block& block, int64_t begin, int64_t end);
  // Hands [begin, end), which came from `rank`, to the user, unless the batch
  // is a ghost.
  void UnpackBlock(const Block& block, int rank, int64_t begin, int64_t end);

  // What is in a block that has arrived: good data, or poison, which has
  // then failed the batch. Bytes that make no sense count as poison of ours.
  Poison Read(const Block& block);

  MoveId Send(int peer, int phase, const Block& block);
  MoveId Receive(int peer, int phase, const Block& block);
  bool Test(MoveId move) { return work_->wire()->Test(move); }
  // Test for a receive: the block can then be read, until Release.
  bool Arrive(MoveId move, Block* block);
  void Release(MoveId move, Block* block);
  bool lends(int peer) const { return work_->wire()->lends(peer); }
  const HostMap& hosts() const { return work_->wire()->hosts(); }
  // Forgets the moves that are done. True if any was.
  bool Sweep(std::vector<MoveId>* moves);

  BatchWork* const work_;
  const int64_t index_;
  bool output_done_ = false;
  bool finished_ = false;

 private:
  const std::byte* Begin(const Block& block) const {
    return block.lent.data != nullptr ? block.lent.data
                                      : staging_.data.get() + block.offset;
  }
  BlockHeader ReadHeader(const Block& block) const;
  uint32_t Tag(int phase) const;

  size_t staging_bytes_ = 0;
  StagingBuffer staging_;
};

// The algorithm for the batch's verb. In <verb>_piece.cc.
std::unique_ptr<Piece> NewAllreducePiece(BatchWork* work, int64_t index);
std::unique_ptr<Piece> NewTwoLevelAllreducePiece(BatchWork* work,
                                                 int64_t index);
std::unique_ptr<Piece> NewAllgatherPiece(BatchWork* work, int64_t index);
std::unique_ptr<Piece> NewBroadcastPiece(BatchWork* work, int64_t index);
std::unique_ptr<Piece> NewPiece(BatchWork* work, int64_t index);

// What the numbers above allow, for StagedTransport to keep: pieces of a batch
// and batches of a set whose tags must not meet.
inline constexpr int64_t kPieceTags = 16;
inline constexpr uint64_t kBatchTags = 256;

}  // namespace hvd

#endif  // HVD_TRANSPORT_PIECE_H_
