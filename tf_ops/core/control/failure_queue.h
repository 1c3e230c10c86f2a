// SPDX-License-Identifier: Apache-2.0
// FailureQueue: failures that a leader has not yet written into the log.
#ifndef HVD_CORE_CONTROL_FAILURE_QUEUE_H_
#define HVD_CORE_CONTROL_FAILURE_QUEUE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/control/message.h"
#include "core/request.h"
#include "core/status.h"

namespace hvd {

// Consecutive failures for one reason become one record. So an aborted step of
// many tensors and ranks takes one text, and a range of ranks for each tensor.
//
// Owner: the leader of a set. Background thread only. Ranks are ranks of the
// set.
class FailureQueue {
 public:
  // Adds the failure of a rank's submission of the key. `older` of its
  // submissions of the key are older and still wait. The leader had agreed on
  // `agreements` tensors.
  void Add(const Key& key, int rank, int older, const SharedStatus& why,
           uint64_t agreements);

  // Whether one of the first `agreements` agreements was on this key and is not
  // in the log yet. The key's failures must wait then, because a rank applies
  // what the log says of a key to the oldest of its submissions.
  using IsHeldBack = std::function<bool(const Key& key, uint64_t agreements)>;

  // The next record, with the names of all keys. Nothing when every failure
  // must wait.
  std::optional<Failure> Take(const IsHeldBack& is_held_back);

  bool empty() const { return groups_.empty(); }

 private:
  // Submissions of one key that have equally many older ones, in the order of
  // their failures.
  struct Item {
    int older = 0;
    std::vector<RankRange> ranks;
  };
  struct Group {
    SharedStatus why;
    uint64_t agreements = 0;
    // A key's items in order; different keys do not depend on each other.
    std::unordered_map<Key, std::vector<Item>, KeyHash> items;
  };

  std::deque<Group> groups_;
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_FAILURE_QUEUE_H_
