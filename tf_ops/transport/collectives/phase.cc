// SPDX-License-Identifier: Apache-2.0
// What all phases share, and the choice of a batch's first one.
#include "transport/collectives/phase.h"

#include <algorithm>
#include <utility>

namespace hvd {

std::unique_ptr<Phase> NewFirstPhase(BatchWork* work) {
  switch (work->batch().verb) {
#define HVD_FIRST_PHASE_CASE(verb, number, text) \
  case Verb::k##verb:                            \
    return New##verb##FirstPhase(work);
    HVD_FOR_EACH_VERB(HVD_FIRST_PHASE_CASE)
#undef HVD_FIRST_PHASE_CASE
  }
  return nullptr;  // CheckBatch refuses other verbs
}

Phase::Phase(BatchWork* work, Operands operands, int64_t bytes, Next next)
    : work_(work),
      packer_(std::move(operands), work->wire()->store_choice(), bytes),
      reducer_(&packer_, work->hosts()),
      next_(std::move(next)) {
  if (packer_.is_large()) packer_.ShareWith(work->threads());
  packer_.TimeInto(work->times());
}

std::unique_ptr<Phase> Phase::MakeNext() const {
  std::unique_ptr<Phase> next = next_ ? next_(*this) : nullptr;
  if (next != nullptr) next->number_ = number_ + 1;
  return next;
}

const Poison& Phase::FailIfNotFinite() {
  const int segment = packer_.not_finite();
  if (segment >= 0) {
    work_->Fail({StatusCode::kInvalidArgument, work_->wire()->rank(), segment});
  }
  return work_->poison();
}

ChunkPlan::ChunkPlan(int64_t elements, int64_t element_bytes,
                     int64_t chunk_bytes)
    : chunk_elements(std::max(
          kAlignedElements,
          chunk_bytes / element_bytes / kAlignedElements * kAlignedElements)) {
  Cover(elements);
}

void ChunkPlan::Cover(int64_t elements) {
  const int64_t chunks = RoundUp(elements, chunk_elements) / chunk_elements;
  chunk_count = std::max(chunk_count, chunks);
}

}  // namespace hvd
