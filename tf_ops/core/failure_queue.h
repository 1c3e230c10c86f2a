// SPDX-License-Identifier: Apache-2.0
// FailureQueue: what a leader has failed and not yet written into the log.
#ifndef HVD_CORE_FAILURE_QUEUE_H_
#define HVD_CORE_FAILURE_QUEUE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/message.h"
#include "core/request.h"
#include "core/status.h"

namespace hvd {

// Failures of one reason that follow one another become one record: an aborted
// step of many tensors at many ranks is one text, and a range of ranks for each
// tensor. Belongs to the leader of a set. Background thread only. Ranks are the
// set's.
class FailureQueue {
 public:
  // The rank's submission of the key fails. `older`: how many of its
  // submissions of the key are older and still wait. `agreements`: how many
  // tensors the leader had agreed on.
  void Add(const Key& key, int rank, int older, const SharedStatus& why,
           uint64_t agreements);

  // Whether a submission of the key that was agreed among the first so many is
  // not in the log yet. Its failures must wait, because a rank takes what the
  // log says of a key for the oldest of its submissions.
  using IsHeldBack = std::function<bool(const Key& key, uint64_t agreements)>;

  // The next record, with the names of all keys; nothing when none may go.
  std::optional<Failure> Take(const IsHeldBack& is_held_back);

  bool empty() const { return groups_.empty(); }

 private:
  // Submissions of one key with as many older ones, in order of their failure.
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

#endif  // HVD_CORE_FAILURE_QUEUE_H_
