// SPDX-License-Identifier: Apache-2.0
// Lays out the rows of a round.
#include "transport/collectives/adasum_rows.h"

#include <new>
#include <utility>

namespace hvd {

bool AdasumRows::Reserve(std::vector<int64_t> counts) {
  counts_ = std::move(counts);
  places_.clear();
  int64_t elements = 0;
  for (const int64_t count : counts_) {
    places_.push_back(elements);
    elements += count * ranks_;
  }
  const int64_t bytes = elements * element_bytes_;
  if (memory_ != nullptr && bytes <= bytes_) return true;
  memory_.reset();
  memory_.reset(new (std::nothrow) std::byte[static_cast<size_t>(bytes)]);
  bytes_ = bytes;
  return memory_ != nullptr;
}

std::byte* AdasumRows::At(size_t segment, int rank, int64_t element) {
  const int64_t place = places_[segment] + rank * counts_[segment] + element;
  return memory_.get() + place * element_bytes_;
}

}  // namespace hvd
