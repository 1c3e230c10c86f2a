// SPDX-License-Identifier: Apache-2.0
// Chunk: one chunk of a phase on the wire, as a state machine.
#ifndef HVD_TRANSPORT_COLLECTIVES_CHUNK_H_
#define HVD_TRANSPORT_COLLECTIVES_CHUNK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/collectives/batch_work.h"
#include "transport/collectives/phase.h"
#include "transport/staging_pool.h"
#include "transport/wire.h"

namespace hvd {

// Stands before the payload of every message. A rank that has no data to send
// sends the header alone, with the reason.
struct BlockHeader {
  uint32_t sequence;  // the batch's, its low 32 bits
  uint32_t chunk;     // its index, and above kPhaseShift its phase's number,
                      // which may wrap around
  uint32_t payload_bytes;  // with poison: its segment + 1, and no payload
  uint16_t origin;         // of the poison: rank within the set
  uint8_t code;            // StatusCode
  uint8_t check;           // kHeaderCheck
};
static_assert(sizeof(BlockHeader) == 16);

// Every member of the set runs matching chunks, with the same messages, even if
// its batch is detached. So no member waits for a message in vain. Of a phase,
// all sends and receives of a chunk have been posted when its output is done.
//
// Owner: StagedTransport. Its Phase, BatchWork and Wire live longer.
class Chunk {
 public:
  Chunk(Phase* phase, int64_t index)
      : phase_(phase), work_(phase->work()), index_(index) {}
  virtual ~Chunk() = default;
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

  // The least memory that Start must get. 0: it gets none. Such a chunk sends
  // nothing, and reads what comes in the peers' memory.
  size_t staging_bytes() const { return staging_bytes_; }
  void Start(StagingBuffer staging);
  // True if anything moved.
  virtual bool Advance() = 0;

  // Whether this rank's output of the chunk is complete, or never will be.
  bool output_done() const { return output_done_; }
  // Whether nothing of the chunk is on the wire any more.
  bool finished() const { return finished_; }
  StagingBuffer TakeStaging() { return std::move(staging_); }

 protected:
  // A header and a payload. They are in this rank's staging memory, or a peer
  // is zero-copy.
  struct Block {
    size_t offset = 0;  // in the staging memory
    int64_t payload_bytes = 0;
    bool is_borrowed = false;  // from a zero-copy peer
    Borrowed borrowed;
  };

  // Before Start: reserves staging memory for a block to send.
  Block AddBlock(int64_t payload_bytes);
  // The same for a block from `peer`. If the peer is zero-copy, it needs no
  // memory.
  Block AddArrival(int peer, int64_t payload_bytes);
  virtual void Post() = 0;

  // The payload, for writing.
  std::byte* Payload(const Block& block) {
    return staging_.data.get() + block.offset + sizeof(BlockHeader);
  }
  // The payload, for reading.
  const std::byte* Content(const Block& block) const {
    return Begin(block) + sizeof(BlockHeader);
  }
  // Writes the header: of a block with data, or with poison instead.
  void Label(const Block& block, const Poison& poison);
  // Labels the block and fills it with elements [begin, end) of `map`, unless
  // the batch has failed, or one of them must not be sent. True: it has them.
  bool PackBlock(const Block& block, const SegmentMap& map, int64_t begin,
                 int64_t end);
  // Copies the block to elements [begin, end) of `map` in the outputs, if there
  // is memory.
  void UnpackBlock(const Block& block, const SegmentMap& map, int64_t begin,
                   int64_t end);

  // Reads the header of a block that has arrived. If the block has poison, the
  // batch has failed with it. Bytes that make no sense count as poison of this
  // rank.
  Poison Read(const Block& block);

  // `hop` tells the moves of a chunk between two ranks apart: 0 to 3.
  MoveId Send(int peer, int hop, const Block& block);
  MoveId Receive(int peer, int hop, const Block& block);
  bool Test(MoveId move) { return work_->wire()->Test(move); }
  // Test for a receive. When it is true, the block can be read until Release.
  bool Arrive(MoveId move, Block* block);
  void Release(MoveId move, Block* block);
  bool zero_copy(int peer) const {
    return work_->wire()->zero_copy(work_->SetRank(peer));
  }
  const HostMap& hosts() const { return phase_->hosts(); }
  // Removes the moves that are done. True if there was one.
  bool Sweep(std::vector<MoveId>* moves);

  Phase* const phase_;
  BatchWork* const work_;
  const int64_t index_;
  bool output_done_ = false;
  bool finished_ = false;

 private:
  const std::byte* Begin(const Block& block) const {
    return block.borrowed.data != nullptr ? block.borrowed.data
                                          : staging_.data.get() + block.offset;
  }
  BlockHeader ReadHeader(const Block& block) const;
  uint32_t Tag(int hop) const;
  uint32_t Number() const;

  size_t staging_bytes_ = 0;
  StagingBuffer staging_;
};

// Tags have room for so many chunks of a batch, and so many batches of a set,
// at once, and one for those that are long. StagedTransport keeps to these
// limits.
inline constexpr int64_t kChunkTags = 16;
inline constexpr uint64_t kBatchTags = 255;

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_CHUNK_H_
