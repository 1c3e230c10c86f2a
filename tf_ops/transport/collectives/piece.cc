// SPDX-License-Identifier: Apache-2.0
// The code that all pieces share: headers, tags and staging memory.
#include "transport/collectives/piece.h"

#include <cstring>
#include <utility>

namespace hvd {
namespace {

constexpr uint8_t kHeaderCheck = 0xb7;
// Payloads begin at cache lines, right after their headers. So vectors do not
// cross lines. Also, a processor may copy between buffers of different
// alignment at a third of its speed (Zen 4, by `rep movsb`).
constexpr size_t kLine = 64;
constexpr size_t kHeaderOffset = kLine - sizeof(BlockHeader);
constexpr int kPhaseBits = 2;
constexpr int kPieceBits = 4;

static_assert(kPieceTags == 1 << kPieceBits);
static_assert(kBatchTags << (kPieceBits + kPhaseBits) == 1 << 14);

}  // namespace

std::unique_ptr<Piece> NewPiece(BatchWork* work, int64_t index) {
  switch (work->batch().verb) {
    case Verb::kAllreduce:
      return NewAllreducePiece(work, index);
    case Verb::kAllgather:
      return NewAllgatherPiece(work, index);
    case Verb::kBroadcast:
      return NewBroadcastPiece(work, index);
  }
  return nullptr;  // CheckBatch refuses other verbs
}

void Piece::Start(StagingBuffer staging) {
  staging_ = std::move(staging);
  Post();
}

Piece::Block Piece::AddBlock(int64_t payload_bytes) {
  const Block block{staging_bytes_ + kHeaderOffset, payload_bytes, false, {}};
  const size_t bytes = kLine + static_cast<size_t>(payload_bytes);
  staging_bytes_ += (bytes + kLine - 1) / kLine * kLine;
  return block;
}

Piece::Block Piece::AddArrival(int peer, int64_t payload_bytes) {
  return lends(peer) ? Block{0, payload_bytes, true, {}}
                     : AddBlock(payload_bytes);
}

void Piece::Label(const Block& block, const Poison& poison) {
  BlockHeader header;
  header.sequence = static_cast<uint32_t>(work_->sequence());
  header.piece = static_cast<uint32_t>(index_);
  header.payload_bytes =
      static_cast<uint32_t>(poison ? poison.segment + 1 : block.payload_bytes);
  header.origin = static_cast<uint16_t>(poison.origin);
  header.code = static_cast<uint8_t>(poison.code);
  header.check = kHeaderCheck;
  std::memcpy(staging_.data.get() + block.offset, &header, sizeof(header));
}

void Piece::PackBlock(const Block& block, int64_t begin, int64_t end) {
  if (!work_->is_ghost()) {
    work_->Pack(begin, end, Payload(block));
    work_->FailIfNotFinite();
  }
  Label(block, work_->poison());
}

void Piece::UnpackBlock(const Block& block, int rank, int64_t begin,
                        int64_t end) {
  if (!work_->is_ghost()) work_->Unpack(rank, begin, end, Content(block));
}

BlockHeader Piece::ReadHeader(const Block& block) const {
  BlockHeader header;
  std::memcpy(&header, Begin(block), sizeof(header));
  return header;
}

Poison Piece::Read(const Block& block) {
  // A lent block has the length that its sender gave. A header of zeros is
  // never valid.
  const bool has_header =
      !block.is_lent || block.lent.bytes >= sizeof(BlockHeader);
  const BlockHeader header = has_header ? ReadHeader(block) : BlockHeader{};
  Poison poison{static_cast<StatusCode>(header.code), header.origin};
  const uint32_t payload_bytes = poison ? 0 : header.payload_bytes;
  const auto segments = static_cast<uint32_t>(work_->batch().segments.size());
  const bool fits =
      header.check == kHeaderCheck &&
      header.sequence == static_cast<uint32_t>(work_->sequence()) &&
      header.piece == static_cast<uint32_t>(index_) &&
      header.code < kStatusCodeCount && header.origin < work_->size() &&
      (poison ? header.payload_bytes <= segments
              : header.payload_bytes == block.payload_bytes) &&
      (!block.is_lent ||
       block.lent.bytes == sizeof(BlockHeader) + payload_bytes);
  if (poison) poison.segment = static_cast<int>(header.payload_bytes) - 1;
  if (!fits) poison = {StatusCode::kInternal, work_->rank()};
  if (poison) work_->Fail(poison);
  return poison;
}

MoveId Piece::Send(int peer, int phase, const Block& block) {
  const BlockHeader header = ReadHeader(block);
  const bool is_ok = header.code == static_cast<uint8_t>(StatusCode::kOk);
  const size_t bytes = sizeof(BlockHeader) + (is_ok ? header.payload_bytes : 0);
  return work_->wire()->Send(peer, Tag(phase),
                             staging_.data.get() + block.offset, bytes);
}

MoveId Piece::Receive(int peer, int phase, const Block& block) {
  if (block.is_lent) {
    return work_->wire()->Receive(
        peer, Tag(phase), nullptr,
        sizeof(BlockHeader) + static_cast<size_t>(block.payload_bytes));
  }
  // So that the header of an earlier piece is not taken for an arrival.
  std::memset(staging_.data.get() + block.offset, 0, sizeof(BlockHeader));
  return work_->wire()->Receive(
      peer, Tag(phase), staging_.data.get() + block.offset,
      sizeof(BlockHeader) + static_cast<size_t>(block.payload_bytes));
}

bool Piece::Arrive(MoveId move, Block* block) {
  if (!Test(move)) return false;
  if (block->is_lent) block->lent = work_->wire()->Arrived(move);
  return true;
}

void Piece::Release(MoveId move, Block* block) {
  if (block->is_lent) work_->wire()->Release(move);
  block->lent = {};
}

bool Piece::Sweep(std::vector<MoveId>* moves) {
  size_t kept = 0;
  for (MoveId move : *moves) {
    if (!Test(move)) (*moves)[kept++] = move;
  }
  const bool moved = kept < moves->size();
  moves->resize(kept);
  return moved;
}

uint32_t Piece::Tag(int phase) const {
  const uint32_t batch = work_->sequence() % kBatchTags;
  const uint32_t piece = index_ % kPieceTags;
  return (batch << kPieceBits | piece) << kPhaseBits |
         static_cast<uint32_t>(phase);
}

}  // namespace hvd
