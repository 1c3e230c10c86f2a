// SPDX-License-Identifier: Apache-2.0
// The code that all chunks share: headers, tags and staging memory.
#include "transport/collectives/chunk.h"

#include <cstring>
#include <utility>

#include "core/batch_times.h"
#include "core/comm_stats.h"

namespace hvd {
namespace {

constexpr uint8_t kHeaderCheck = 0xb7;
// Payloads begin at cache lines, right after their headers. So vectors do not
// cross lines. Also, a processor may copy between buffers of different
// alignment at a third of its speed (Zen 4, by `rep movsb`).
constexpr size_t kLine = 64;
constexpr size_t kHeaderOffset = kLine - sizeof(BlockHeader);
constexpr int kHopBits = 2;
constexpr int kChunkBits = 4;
// A batch of 2^28 chunks would have terabytes.
constexpr int kPhaseShift = 28;

static_assert(kChunkTags == 1 << kChunkBits);
static_assert((kBatchTags + 1) << (kChunkBits + kHopBits) == 1 << 14);

}  // namespace

void Chunk::Start(StagingBuffer staging) {
  staging_ = std::move(staging);
  Post();
}

Chunk::Block Chunk::AddBlock(int64_t payload_bytes) {
  const Block block{staging_bytes_ + kHeaderOffset, payload_bytes, false, {}};
  const size_t bytes = kLine + static_cast<size_t>(payload_bytes);
  staging_bytes_ += (bytes + kLine - 1) / kLine * kLine;
  return block;
}

Chunk::Block Chunk::AddArrival(int peer, int64_t payload_bytes) {
  return zero_copy(peer) ? Block{0, payload_bytes, true, {}}
                         : AddBlock(payload_bytes);
}

void Chunk::Label(const Block& block, const Poison& poison) {
  if (poison) phase_->NotePoison();
  BlockHeader header;
  header.sequence = static_cast<uint32_t>(work_->sequence());
  header.chunk = Number();
  header.payload_bytes =
      static_cast<uint32_t>(poison ? poison.segment + 1 : block.payload_bytes);
  header.origin = static_cast<uint16_t>(poison.origin);
  header.code = static_cast<uint8_t>(poison.code);
  header.check = kHeaderCheck;
  std::memcpy(staging_.data.get() + block.offset, &header, sizeof(header));
}

bool Chunk::PackBlock(const Block& block, const SegmentMap& map, int64_t begin,
                      int64_t end) {
  if (!work_->is_detached()) {
    phase_->packer().Pack(map, begin, end, Payload(block));
    phase_->FailIfNotFinite();
  }
  Label(block, work_->poison());
  return !work_->is_detached();
}

void Chunk::UnpackBlock(const Block& block, const SegmentMap& map,
                        int64_t begin, int64_t end) {
  if (phase_->has_memory()) {
    phase_->packer().Unpack(map, begin, end, Content(block));
  }
}

BlockHeader Chunk::ReadHeader(const Block& block) const {
  BlockHeader header;
  std::memcpy(&header, Begin(block), sizeof(header));
  return header;
}

Poison Chunk::Read(const Block& block) {
  // A borrowed block has the length that its sender gave. A header of zeros is
  // never valid.
  const bool has_header =
      !block.is_borrowed || block.borrowed.bytes >= sizeof(BlockHeader);
  const BlockHeader header = has_header ? ReadHeader(block) : BlockHeader{};
  Poison poison{static_cast<StatusCode>(header.code), header.origin};
  const uint32_t payload_bytes = poison ? 0 : header.payload_bytes;
  const auto segments = static_cast<uint32_t>(work_->batch().segments.size());
  const bool fits =
      header.check == kHeaderCheck &&
      header.sequence == static_cast<uint32_t>(work_->sequence()) &&
      header.chunk == Number() && header.code < kStatusCodeCount &&
      header.origin < work_->wire()->size() &&
      (poison ? header.payload_bytes <= segments
              : header.payload_bytes == block.payload_bytes) &&
      (!block.is_borrowed ||
       block.borrowed.bytes == sizeof(BlockHeader) + payload_bytes);
  if (poison) poison.segment = static_cast<int>(header.payload_bytes) - 1;
  if (!fits) poison = {StatusCode::kInternal, work_->wire()->rank()};
  if (poison) {
    phase_->NotePoison();
    work_->Fail(poison);
  }
  return poison;
}

MoveId Chunk::Send(int peer, int hop, const Block& block) {
  const BlockHeader header = ReadHeader(block);
  const bool is_ok = header.code == static_cast<uint8_t>(StatusCode::kOk);
  const size_t content_bytes = is_ok ? header.payload_bytes : 0;
  const size_t bytes = sizeof(BlockHeader) + content_bytes;
  const size_t payload_bytes =
      phase_->packer().operands().are_sizes ? 0 : content_bytes;
  if (VerbCounters* const counters = work_->batch().counters) {
    counters->blocks.Add(1);
    counters->payload_bytes.Add(payload_bytes);
    counters->header_bytes.Add(bytes - payload_bytes);
  }
  if (BatchTimes* const times = work_->times()) {
    times->payload_bytes += static_cast<int64_t>(payload_bytes);
  }
  return work_->wire()->Send(work_->SetRank(peer), Tag(hop),
                             staging_.data.get() + block.offset, bytes);
}

MoveId Chunk::Receive(int peer, int hop, const Block& block) {
  const int from = work_->SetRank(peer);
  if (block.is_borrowed) {
    return work_->wire()->Receive(
        from, Tag(hop), nullptr,
        sizeof(BlockHeader) + static_cast<size_t>(block.payload_bytes));
  }
  // So that the header of an earlier chunk is not taken for an arrival.
  std::memset(staging_.data.get() + block.offset, 0, sizeof(BlockHeader));
  return work_->wire()->Receive(
      from, Tag(hop), staging_.data.get() + block.offset,
      sizeof(BlockHeader) + static_cast<size_t>(block.payload_bytes));
}

bool Chunk::Arrive(MoveId move, Block* block) {
  if (!Test(move)) return false;
  if (block->is_borrowed) block->borrowed = work_->wire()->Arrived(move);
  return true;
}

void Chunk::Release(MoveId move, Block* block) {
  if (block->is_borrowed) work_->wire()->Release(move);
  block->borrowed = {};
}

bool Chunk::Sweep(std::vector<MoveId>* moves) {
  size_t kept = 0;
  for (MoveId move : *moves) {
    if (!Test(move)) (*moves)[kept++] = move;
  }
  const bool moved = kept < moves->size();
  moves->resize(kept);
  return moved;
}

uint32_t Chunk::Tag(int hop) const {
  const uint32_t batch =
      work_->batch().is_long ? kBatchTags : work_->sequence() % kBatchTags;
  const uint32_t chunk = index_ % kChunkTags;
  return (batch << kChunkBits | chunk) << kHopBits | static_cast<uint32_t>(hop);
}

uint32_t Chunk::Number() const {
  return static_cast<uint32_t>(phase_->number()) << kPhaseShift |
         static_cast<uint32_t>(index_);
}

}  // namespace hvd
