// SPDX-License-Identifier: Apache-2.0
// Tuning: the values that may change while a job runs.
#ifndef HVD_CORE_TUNING_H_
#define HVD_CORE_TUNING_H_

#include <cstdint>

namespace hvd {

// None of them changes a result. The leader alone uses fusion_bytes and
// batches_in_flight. chunk_bytes must change on all ranks between the same two
// batches. So the log has a record for a Tuning.
struct Tuning {
  int64_t fusion_bytes = 0;
  int64_t chunk_bytes = 0;  // 0: the transport has no chunks to tune
  int64_t batches_in_flight = 0;

  bool operator==(const Tuning& other) const {
    return fusion_bytes == other.fusion_bytes &&
           chunk_bytes == other.chunk_bytes &&
           batches_in_flight == other.batches_in_flight;
  }
  bool operator!=(const Tuning& other) const { return !(*this == other); }
};

}  // namespace hvd

#endif  // HVD_CORE_TUNING_H_
