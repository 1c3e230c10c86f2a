// SPDX-License-Identifier: Apache-2.0
// Chunk: one chunk of a staged batch on the wire, as a state machine.
#ifndef HVD_TRANSPORT_COLLECTIVES_CHUNK_H_
#define HVD_TRANSPORT_COLLECTIVES_CHUNK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/collectives/batch_work.h"
#include "transport/staging_pool.h"
#include "transport/wire.h"

namespace hvd {

// Stands before the payload of every message. A rank that has no data to send
// sends the header alone, with the reason.
struct BlockHeader {
  uint32_t sequence;  // the batch's, its low 32 bits
  uint32_t chunk;
  uint32_t payload_bytes;  // with poison: its segment + 1, and no payload
  uint16_t origin;         // of the poison: rank within the set
  uint8_t code;            // StatusCode
  uint8_t check;           // kHeaderCheck
};
static_assert(sizeof(BlockHeader) == 16);

// Every member of the set runs the same chunks, with the same messages, even if
// its batch is detached. So no member waits for a message in vain.
//
// Owner: StagedTransport. Its BatchWork and Wire live longer.
class Chunk {
 public:
  Chunk(BatchWork* work, int64_t index) : work_(work), index_(index) {}
  virtual ~Chunk() = default;
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

  // The least memory that Start must get.
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
  // Labels the block and fills it with this rank's elements [begin, end),
  // unless the batch is detached, or one of them must not be sent.
  void PackBlock(const Block& block, int64_t begin, int64_t end);
  // Copies the elements [begin, end) of `rank` to the user, unless the batch is
  // detached.
  void UnpackBlock(const Block& block, int rank, int64_t begin, int64_t end);

  // Reads the header of a block that has arrived. If the block has poison, the
  // batch has failed with it. Bytes that make no sense count as poison of this
  // rank.
  Poison Read(const Block& block);

  MoveId Send(int peer, int phase, const Block& block);
  MoveId Receive(int peer, int phase, const Block& block);
  bool Test(MoveId move) { return work_->wire()->Test(move); }
  // Test for a receive. When it is true, the block can be read until Release.
  bool Arrive(MoveId move, Block* block);
  void Release(MoveId move, Block* block);
  bool zero_copy(int peer) const { return work_->wire()->zero_copy(peer); }
  const HostMap& hosts() const { return work_->wire()->hosts(); }
  // Removes the moves that are done. True if there was one.
  bool Sweep(std::vector<MoveId>* moves);

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
  uint32_t Tag(int phase) const;

  size_t staging_bytes_ = 0;
  StagingBuffer staging_;
};

// NewChunk makes the chunk of the batch's verb. The others are in files such as
// allreduce_chunk.cc.
std::unique_ptr<Chunk> NewAllreduceChunk(BatchWork* work, int64_t index);
std::unique_ptr<Chunk> NewTwoLevelAllreduceChunk(BatchWork* work,
                                                 int64_t index);
std::unique_ptr<Chunk> NewAllgatherChunk(BatchWork* work, int64_t index);
std::unique_ptr<Chunk> NewBroadcastChunk(BatchWork* work, int64_t index);
std::unique_ptr<Chunk> NewChunk(BatchWork* work, int64_t index);

// Tags have room for so many chunks of a batch, and so many batches of a set,
// at once. StagedTransport keeps to these limits.
inline constexpr int64_t kChunkTags = 16;
inline constexpr uint64_t kBatchTags = 256;

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_CHUNK_H_
