// SPDX-License-Identifier: Apache-2.0
// KnownSets: the process sets of the job, as the log of the global set has
// brought them.
#ifndef HVD_CORE_CONTROL_KNOWN_SETS_H_
#define HVD_CORE_CONTROL_KNOWN_SETS_H_

#include <map>
#include <optional>

#include "core/control/set_change.h"
#include "core/process_set.h"
#include "core/status.h"

namespace hvd {

// Every rank has one, whether it is a member of a set or not. A record that
// does not follow from those before it was written by no leader. To apply it
// would be to use a set that is not there, or two sets in one place.
//
// Background thread only.
class KnownSets {
 public:
  // One that the job starts with. Its slot is its id. Not the global set.
  void Add(const ProcessSet& set);

  // The next record of the log, which CheckSetChange has let pass. Not Ok: no
  // leader says that now, and nothing has changed here.
  Status Apply(const SetChange& change);

  // Whether there was such a set and is no more. So is one that has not been
  // committed: nobody sends anything in it.
  bool IsGone(int serial) const {
    return serial <= newest_serial_ && sets_.count(serial) == 0;
  }

 private:
  struct Known {
    int id;
    int slot;
  };

  Status Prepare(const SetChange& change);
  Status Commit(const SetChange& change);
  Status Refuse(const SetChange& change);
  Status Remove(const SetChange& change);

  std::map<int, Known> sets_;  // by serial
  // The one that is neither committed nor refused yet.
  std::optional<SetChange> begun_;
  int newest_serial_ = 0;  // of all that were begun
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_KNOWN_SETS_H_
