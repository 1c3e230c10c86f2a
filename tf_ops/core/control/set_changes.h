// SPDX-License-Identifier: Apache-2.0
// SetChanges: decides, for all ranks of the job, which process sets come and
// go.
#ifndef HVD_CORE_CONTROL_SET_CHANGES_H_
#define HVD_CORE_CONTROL_SET_CHANGES_H_

#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/control/set_change.h"
#include "core/control/stall.h"
#include "core/status.h"

namespace hvd {

// A part of the global set's leader. It has the ranks' requests and answers,
// and writes the records.
//
// A call waits until every rank of the job has made it. To add a set takes two
// records: its members prepare it, and when all have the memory it is
// committed, else refused. So it exists on all ranks or on none. A removed set
// keeps its slot until each member has said that nothing of it is on the wire.
// A set is prepared only when no removed one is left there. So what it needs is
// free, whatever was removed before.
//
// It reads no clock and knows no wire. Background thread only. Ranks are ranks
// of the job.
class SetChanges {
 public:
  using Clock = std::chrono::steady_clock;

  // The job has `size` ranks. It starts with sets of the ranks in `sets`, whose
  // ids, serials and slots are 1, 2, ...
  SetChanges(int size, const std::vector<std::vector<int>>& sets);

  // Not Ok: it makes no sense. There is a bug, or that rank has another build.
  Status Handle(int rank, const SetRequest& request, Clock::time_point now);
  Status Handle(int rank, const SetAnswer& answer);

  // These ranks have joined: they make no call until all others have, too. Once
  // nobody else is missing, the call is refused.
  void RefuseWithout(const std::vector<int>& joined);

  // The next record. None: there is none.
  std::optional<SetChange> Next();

  // The call that some ranks have made and others have not. None: there is
  // none.
  std::optional<Stall> Waiting(Clock::time_point now) const;

 private:
  struct Known {
    int serial = 0;
    int slot = 0;
    std::vector<int> ranks;
  };
  struct Preparing {
    int id = 0;
    Known set;
    std::set<int> unanswered;
    std::map<int, Status> failed;  // by rank
  };

  void Decide();
  // Takes the ranks' requests, which are answered from now on.
  std::vector<std::optional<SetRequest>> TakeRequests();
  void Refuse(Status why, int serial = 0);
  void Remove(int id);
  void Prepare(std::vector<int> ranks);
  void EndPreparation();
  // Ok, or what the ranks' requests are wrong with.
  Status CheckRequests() const;
  // Ok, or why there can be no such set.
  Status CheckNew(const std::vector<int>& ranks) const;
  int FreeSlot() const;
  int FreeId() const;

  const int size_;
  std::map<int, Known> sets_;  // by id; the global set is not among them
  int serials_ = 0;            // so far
  std::vector<std::optional<SetRequest>> asked_;  // by rank
  int asked_count_ = 0;
  Clock::time_point asked_since_;
  // To be prepared when no removed set is left on the wire.
  std::optional<std::vector<int>> due_;
  std::optional<Preparing> preparing_;
  // By serial: who has not left the wire of a removed set yet.
  std::map<int, std::set<int>> draining_;
  std::deque<SetChange> news_;
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_SET_CHANGES_H_
