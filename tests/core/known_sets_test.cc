// SPDX-License-Identifier: Apache-2.0
// KnownSets: a log of changes that no leader writes is refused, record by
// record.
#include "core/control/known_sets.h"

#include <string>
#include <vector>

#include "harness.h"

namespace hvd {
namespace {

SetChange Change(SetStep step, int serial, int id, int slot = 0,
                 std::vector<int> ranks = {}) {
  SetChange change;
  change.step = step;
  change.serial = serial;
  change.id = id;
  change.slot = slot;
  change.ranks = std::move(ranks);
  change.status = FailedPrecondition("no");
  return change;
}
SetChange Prepare(int serial, int id, int slot) {
  return Change(SetStep::kPrepare, serial, id, slot, {0, 1});
}
SetChange Commit(int serial, int id, std::vector<int> ranks = {0, 1}) {
  return Change(SetStep::kCommit, serial, id, 0, std::move(ranks));
}
SetChange Refuse(int serial) { return Change(SetStep::kRefuse, serial, 0); }
SetChange Remove(int serial, int id) {
  return Change(SetStep::kRemove, serial, id);
}

// A job that began with one set.
class Log {
 public:
  Log() {
    ProcessSet first;
    first.id = first.serial = 1;
    known_.Add(first);
  }
  // All but the last are fine. Returns what is said of the last.
  std::string Apply(const std::vector<SetChange>& changes) {
    Status last;
    for (const SetChange& change : changes) {
      EXPECT_EQ(last.message(), "");
      last = known_.Apply(change);
      if (!last.ok()) EXPECT_EQ(last.code(), StatusCode::kInternal);
    }
    return last.message();
  }
  bool IsGone(int serial) const { return known_.IsGone(serial); }

 private:
  KnownSets known_;
};

TEST(known_sets_follow_a_log_that_makes_sense) {
  Log log;
  EXPECT_EQ(log.Apply({Prepare(2, 2, 2), Refuse(2), Refuse(0)}), "");
  EXPECT_EQ(log.Apply({Prepare(3, 2, 2), Commit(3, 2)}), "");
  for (int serial : {1, 3}) EXPECT_FALSE(log.IsGone(serial));
  // An id and a slot are used again, a serial never is.
  EXPECT_EQ(log.Apply({Remove(1, 1), Prepare(4, 1, 1), Commit(4, 1)}), "");
  for (int serial : {1, 2}) EXPECT_TRUE(log.IsGone(serial));
  for (int serial : {3, 4, 5}) EXPECT_FALSE(log.IsGone(serial));
}

TEST(known_sets_refuse_what_no_leader_says) {
  const SetChange prepare = Prepare(2, 2, 2), commit = Commit(2, 2);
  const struct {
    std::vector<SetChange> changes;
    const char* text;
  } kCases[] = {
      {{prepare, Prepare(3, 3, 3)},
       "the log begins process set 3, while process set 2 is not ready."},
      {{Prepare(1, 2, 2)},
       "the log begins process set 2, whose number was used before."},
      {{prepare, Refuse(2), prepare},
       "the log begins process set 2, whose number was used before."},
      {{Prepare(2, 2, 1)},
       "the log begins process set 2, in the place of process set 1."},
      {{prepare, commit, Prepare(3, 3, 2)},
       "the log begins process set 3, in the place of process set 2."},
      {{Prepare(2, 1, 2)},
       "the log begins process set 1, in the place of process set 1."},
      {{commit}, "the log commits to process set 2, which it has not begun."},
      {{prepare, commit, commit},
       "the log commits to process set 2, which it has not begun."},
      {{prepare, Refuse(2), commit},
       "the log commits to process set 2, which it has not begun."},
      {{prepare, Commit(2, 3)},
       "the log commits to process set 3, which it has not begun."},
      {{prepare, Commit(2, 2, {0, 2})},
       "the log commits to process set 2, which it has not begun."},
      {{Refuse(1)},
       "the log refuses process set number 1, and has begun none."},
      {{prepare, commit, Refuse(2)},
       "the log refuses process set number 2, and has begun none."},
      {{prepare, Refuse(2), Refuse(2)},
       "the log refuses process set number 2, and has begun none."},
      {{prepare, Refuse(0)},
       "the log refuses process set number 0, and has begun number 2."},
      {{Remove(2, 2)}, "the log removes process set 2, which there is not."},
      {{prepare, Remove(2, 2)},
       "the log removes process set 2, which there is not."},
      {{Remove(1, 2)}, "the log removes process set 2, which there is not."},
      {{Remove(1, 1), Remove(1, 1)},
       "the log removes process set 1, which there is not."},
      {{prepare, Remove(1, 1)},
       "the log removes process set 1, while process set 2 is not ready."},
  };
  for (const auto& nonsense : kCases) {
    EXPECT_EQ(Log().Apply(nonsense.changes), nonsense.text);
  }
}

}  // namespace
}  // namespace hvd
