// SPDX-License-Identifier: Apache-2.0
// What ranks and the leader of the global set say of process sets that come and
// go. These travel; see message.h.
#ifndef HVD_CORE_CONTROL_SET_CHANGE_H_
#define HVD_CORE_CONTROL_SET_CHANGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"

namespace hvd {

// "My program asks for this change." Every rank of the job asks for the same.
struct SetRequest {
  bool removes = false;
  std::vector<int> ranks;  // to add: ranks of the job, ascending
  int id = 0;              // to remove: the set's
  // Not Ok: this rank found its call invalid. Then no rank's call succeeds.
  Status error;
};

// "I have done what that record asked of me, or could not."
struct SetAnswer {
  int serial = 0;  // of the set
  // The answer to kPrepare says why this rank has no memory for the set. That
  // to kRemove is always Ok: nothing of the set is on the wire any more.
  Status status;
};

enum class SetStep : uint8_t {
  // Members make what the set needs, and answer.
  kPrepare = 0,
  // All have it. From now on the set may be used.
  kCommit = 1,
  // The call fails. What was prepared is thrown away.
  kRefuse = 2,
  // No new call may name the set. Members answer when they have left its wire.
  kRemove = 3,
  // The last record of the set's own log. What is not agreed by then fails.
  kClose = 4,
};
inline constexpr uint8_t kSetStepCount = 5;

// A record of the log of the global set, but for kClose.
struct SetChange {
  SetStep step = SetStep::kPrepare;
  int serial = 0;  // 0: no set (kRefuse of a call that began none)
  int id = 0;
  int slot = 0;            // kPrepare: the set's number on the wire
  std::vector<int> ranks;  // kPrepare, kCommit: of the job, ascending
  Status status;           // kRefuse, kRemove, kClose: what calls fail with
};

// Such as "[0, 1]".
[[nodiscard]] std::string RanksText(const std::vector<int>& ranks);

// Such as "add_process_set([0, 1])".
[[nodiscard]] std::string NameCall(const SetRequest& request);

// Whether these may be the ranks of a set of a job of `size` ranks, in any
// order. The text names what is wrong.
[[nodiscard]] Status CheckSetRanks(const std::vector<int>& ranks, int size);

// Not Ok if no leader of this build writes such a record into the log of the
// global set. What passes may be used as indices and sizes.
[[nodiscard]] Status CheckSetChange(const SetChange& change, int job_size);

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_SET_CHANGE_H_
