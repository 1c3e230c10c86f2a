// SPDX-License-Identifier: Apache-2.0
// BatchPlanner: agreed tensors that are not in the log yet, and their batches.
#ifndef HVD_CORE_CONTROL_BATCH_PLANNER_H_
#define HVD_CORE_CONTROL_BATCH_PLANNER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "core/control/agreed.h"
#include "core/request.h"

namespace hvd {

// Tensors are held back in the order of their agreement until the wire has room
// for them. Those that it has room for become batches.
//
// Owner: the leader of a set. Background thread only. Reads no clock.
class BatchPlanner {
 public:
  void Add(Agreed agreed) { held_back_.push_back(std::move(agreed)); }

  // Makes at most `room` batches, of at most `fusion_bytes` each, out of what
  // is held back. To be called while there is no batch.
  //
  // `keys_repeat`: a key may have been agreed on twice. Then only the tensors
  // before its second agreement become batches. Batches may leave in another
  // order than their tensors were agreed.
  void Plan(int64_t room, int64_t fusion_bytes, bool keys_repeat);

  bool has_batch() const { return !batches_.empty(); }
  // The next batch. There must be one.
  std::vector<Agreed> TakeBatch();

  // The number of the first agreement on each key that is still here.
  std::unordered_map<Key, uint64_t, KeyHash> FirstAgreements() const;

 private:
  // How many of held_back_ have different keys.
  size_t DifferentKeys() const;

  std::vector<Agreed> held_back_;
  std::deque<std::vector<Agreed>> batches_;
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_BATCH_PLANNER_H_
