// SPDX-License-Identifier: Apache-2.0
// SetChanges: calls that match or differ, and sets from preparation to end.
#include "core/control/set_changes.h"

#include <string>
#include <vector>

#include "core/process_set.h"
#include "harness.h"

namespace hvd {
namespace {

using Ranks = std::vector<int>;

SetRequest Add(Ranks ranks) { return {false, std::move(ranks), 0, {}}; }
SetRequest Remove(int id) { return {true, {}, id, {}}; }

// The leader's part, with ranks that all do the same.
class Job {
 public:
  explicit Job(int size, const std::vector<Ranks>& sets = {})
      : size_(size), changes(size, sets) {}

  void Ask(int rank, const SetRequest& request) {
    EXPECT_EQ(changes.Handle(rank, request, now).message(), "");
  }
  void AskAll(const SetRequest& request) {
    for (int rank = 0; rank < size_; ++rank) Ask(rank, request);
  }
  void Answer(int rank, int serial, Status status = Status::Ok()) {
    EXPECT_EQ(changes.Handle(rank, {serial, std::move(status)}).message(), "");
  }
  // A record that must be there, and fit.
  SetChange Next(SetStep step) {
    std::optional<SetChange> next = changes.Next();
    EXPECT_TRUE(next.has_value());
    if (!next.has_value()) return {};
    EXPECT_EQ(static_cast<int>(next->step), static_cast<int>(step));
    EXPECT_EQ(CheckSetChange(*next, size_).message(), "");
    return *next;
  }
  bool IsQuiet() { return !changes.Next().has_value(); }
  // Adds a set, whose members all have memory for it.
  SetChange AddAll(const Ranks& ranks) {
    AskAll(Add(ranks));
    const SetChange prepared = Next(SetStep::kPrepare);
    for (int rank : ranks) Answer(rank, prepared.serial);
    const SetChange commit = Next(SetStep::kCommit);
    EXPECT_EQ(commit.id, prepared.id);
    EXPECT_EQ(commit.serial, prepared.serial);
    EXPECT_TRUE(commit.ranks == ranks);
    return prepared;
  }
  // Removes a set. It still has its slot.
  void RemoveAll(const SetChange& set) {
    AskAll(Remove(set.id));
    EXPECT_EQ(Next(SetStep::kRemove).serial, set.serial);
  }
  std::string Refusal(StatusCode code) {
    const SetChange refused = Next(SetStep::kRefuse);
    EXPECT_EQ(static_cast<int>(refused.status.code()), static_cast<int>(code));
    return refused.status.message();
  }

  const int size_;
  SetChanges changes;
  SetChanges::Clock::time_point now{};
};

bool Has(const std::string& text, const std::string& part) {
  const bool has = text.find(part) != std::string::npos;
  if (!has) EXPECT_EQ(text, part);
  return has;
}

TEST(set_changes_wait_for_every_rank_and_every_answer) {
  Job job(3, {{0, 1}});
  job.Ask(0, Add({1, 2}));
  job.Ask(2, Add({1, 2}));
  EXPECT_TRUE(job.IsQuiet());
  job.Ask(1, Add({1, 2}));
  const SetChange prepared = job.Next(SetStep::kPrepare);
  EXPECT_EQ(prepared.id, 2);
  EXPECT_EQ(prepared.serial, 2);
  EXPECT_EQ(prepared.slot, 2);
  job.Answer(2, prepared.serial);
  EXPECT_TRUE(job.IsQuiet());
  job.Answer(1, prepared.serial);
  EXPECT_EQ(job.Next(SetStep::kCommit).id, 2);
  EXPECT_TRUE(job.IsQuiet());
}

TEST(set_changes_give_ids_and_slots_again_but_no_serial) {
  Job job(4);
  const SetChange a = job.AddAll({0, 1});
  const SetChange b = job.AddAll({2, 3});
  EXPECT_EQ(b.id, 2);
  job.RemoveAll(a);
  // Not before both members have left its wire.
  job.AskAll(Add({0, 2}));
  EXPECT_TRUE(job.IsQuiet());
  job.Answer(1, a.serial);
  EXPECT_TRUE(job.IsQuiet());
  job.Answer(0, a.serial);
  const SetChange c = job.Next(SetStep::kPrepare);
  EXPECT_EQ(c.id, a.id);
  EXPECT_EQ(c.slot, a.slot);
  EXPECT_EQ(c.serial, 3);
}

TEST(set_changes_that_one_member_has_no_memory_for_are_refused_for_all) {
  Job job(3);
  job.AskAll(Add({0, 1, 2}));
  EXPECT_TRUE(Has(job.Refusal(StatusCode::kInvalidArgument), "all ranks"));
  job.AskAll(Add({0, 2}));
  const SetChange prepared = job.Next(SetStep::kPrepare);
  job.Answer(2, prepared.serial, ResourceExhausted("no room"));
  EXPECT_TRUE(job.IsQuiet());  // the other may still be at it
  job.Answer(0, prepared.serial);
  const SetChange refused = job.Next(SetStep::kRefuse);
  EXPECT_EQ(refused.serial, prepared.serial);
  EXPECT_EQ(refused.status.message(),
            "add_process_set([0, 2]) failed on rank 2, and so on all ranks: no "
            "room");
  ASSERT_TRUE(refused.status.cause() != nullptr);
  EXPECT_EQ(refused.status.cause()->rank, 2);
  const SetChange next = job.AddAll({0, 2});
  EXPECT_EQ(next.id, 1);
  EXPECT_EQ(next.slot, 1);
}

TEST(set_changes_that_differ_name_every_rank_and_value) {
  Job job(4, {{0, 1}});
  job.Ask(0, Add({0, 2}));
  job.Ask(1, Add({0, 2}));
  job.Ask(2, Remove(1));
  job.Ask(3, Add({0, 3}));
  EXPECT_EQ(job.Refusal(StatusCode::kFailedPrecondition),
            "the ranks change process sets differently: add_process_set([0, "
            "2]) on ranks 0-1, remove_process_set of set 1 on rank 2, "
            "add_process_set([0, 3]) on rank 3; make the same calls in the "
            "same order on every rank of the job.");
  EXPECT_EQ(job.AddAll({0, 2}).id, 2);
}

TEST(set_changes_that_cannot_be_are_refused) {
  Job job(3, {{2, 1}});
  job.AskAll(Add({1, 2}));
  EXPECT_TRUE(Has(job.Refusal(StatusCode::kInvalidArgument),
                  "process set 1 has the same ranks"));
  job.AskAll(Add({0, 3}));
  EXPECT_TRUE(Has(job.Refusal(StatusCode::kInvalidArgument), "names rank 3"));
  job.AskAll(Remove(7));
  EXPECT_TRUE(
      Has(job.Refusal(StatusCode::kInvalidArgument), "no process set 7"));
  job.AskAll(Remove(0));
  EXPECT_TRUE(
      Has(job.Refusal(StatusCode::kInvalidArgument), "no process set 0"));
  job.Ask(0, Add({0, 1}));
  SetRequest wrong = Add({});
  wrong.error = InvalidArgument("ranks must be ints");
  job.Ask(1, wrong);
  job.Ask(2, Add({0, 1}));
  EXPECT_EQ(job.Refusal(StatusCode::kInvalidArgument),
            "add_process_set failed on rank 1, and so on all ranks: ranks must "
            "be ints");
}

TEST(set_changes_know_how_many_sets_there_can_be) {
  Job job(7);
  std::vector<SetChange> sets;
  for (int mask = 1; sets.size() < kProcessSetSlots - 1; ++mask) {
    Ranks ranks;
    for (int rank = 0; rank < 7; ++rank) {
      if ((mask >> rank & 1) != 0) ranks.push_back(rank);
    }
    sets.push_back(job.AddAll(ranks));
  }
  EXPECT_EQ(sets.back().slot, kProcessSetSlots - 1);
  job.AskAll(Add({5, 6}));
  EXPECT_TRUE(Has(job.Refusal(StatusCode::kInvalidArgument),
                  "there are 63 process sets"));
  job.RemoveAll(sets[9]);
  for (int rank : sets[9].ranks) job.Answer(rank, sets[9].serial);
  EXPECT_EQ(job.AddAll({5, 6}).slot, sets[9].slot);
}

TEST(set_changes_do_not_wait_for_ranks_that_have_joined) {
  Job job(4);
  job.changes.RefuseWithout({1});
  EXPECT_TRUE(job.IsQuiet());
  job.Ask(0, Add({0, 1}));
  job.changes.RefuseWithout({1, 3});
  EXPECT_TRUE(job.IsQuiet());  // rank 2 has not said yet
  job.Ask(2, Add({0, 1}));
  job.changes.RefuseWithout({1, 2, 3});
  EXPECT_EQ(job.Refusal(StatusCode::kFailedPrecondition),
            "add_process_set([0, 1]) needs every rank of the job, and "
            "hvd.join() has been called on ranks 1, 3; add and remove "
            "process sets before any rank joins, or after all have.");
  EXPECT_FALSE(job.changes.Waiting(job.now).has_value());
  EXPECT_EQ(job.AddAll({0, 1}).id, 1);
}

TEST(set_changes_tell_who_keeps_a_call_waiting) {
  Job job(4);
  EXPECT_FALSE(job.changes.Waiting(job.now).has_value());
  job.Ask(1, Add({0, 1}));
  // They wait from the first call on.
  job.now += std::chrono::milliseconds(500);
  job.Ask(3, Remove(2));
  SetRequest wrong = Add({});
  wrong.error = InvalidArgument("ranks must be ints");
  job.Ask(0, wrong);
  const auto stall =
      job.changes.Waiting(job.now + std::chrono::milliseconds(2000));
  ASSERT_TRUE(stall.has_value());
  EXPECT_TRUE((stall->missing == Ranks{2}));
  EXPECT_TRUE((stall->names == std::vector<std::string>{
                                   "add_process_set", "add_process_set([0, 1])",
                                   "remove_process_set of set 2"}));
  EXPECT_EQ(stall->waited_s, 2.5);
  EXPECT_TRUE(stall->are_calls);
  EXPECT_TRUE(Has(StallWarning(*stall, "rank 2"), " 3 calls have waited"));
}

TEST(set_changes_refuse_messages_that_make_no_sense) {
  Job job(2);
  job.Ask(0, Add({0}));
  const auto is_bug = [&](const Status& status) {
    return status.code() == StatusCode::kInternal;
  };
  EXPECT_TRUE(is_bug(job.changes.Handle(0, Add({0}), job.now)));  // twice
  EXPECT_TRUE(is_bug(job.changes.Handle(0, SetAnswer{1, {}})));
  job.Ask(1, Add({0}));
  const SetChange prepared = job.Next(SetStep::kPrepare);
  EXPECT_TRUE(is_bug(job.changes.Handle(0, Add({0}), job.now)));
  // Not a member, another set, and twice.
  EXPECT_TRUE(is_bug(job.changes.Handle(1, SetAnswer{prepared.serial, {}})));
  EXPECT_TRUE(is_bug(job.changes.Handle(0, SetAnswer{9, {}})));
  job.Answer(0, prepared.serial);
  EXPECT_TRUE(is_bug(job.changes.Handle(0, SetAnswer{prepared.serial, {}})));
}

TEST(set_change_records_that_make_no_sense_are_refused) {
  SetChange good;
  good.serial = good.id = good.slot = 1;
  good.ranks = {0, 2};
  EXPECT_TRUE(CheckSetChange(good, 3).ok());
  const auto refused = [&](auto spoil) {
    SetChange bad = good;
    spoil(&bad);
    return CheckSetChange(bad, 3).code() == StatusCode::kInternal;
  };
  EXPECT_TRUE(refused([](SetChange* c) { c->slot = 0; }));
  EXPECT_TRUE(refused([](SetChange* c) { c->slot = kProcessSetSlots; }));
  EXPECT_TRUE(refused([](SetChange* c) { c->id = 0; }));
  EXPECT_TRUE(refused([](SetChange* c) { c->serial = 0; }));
  EXPECT_TRUE(refused([](SetChange* c) { c->ranks = {}; }));
  EXPECT_TRUE(refused([](SetChange* c) { c->ranks = {2, 0}; }));
  EXPECT_TRUE(refused([](SetChange* c) { c->ranks = {0, 0}; }));
  EXPECT_TRUE(refused([](SetChange* c) { c->ranks = {0, 3}; }));
  EXPECT_TRUE(refused([](SetChange* c) { c->step = SetStep::kClose; }));
  EXPECT_TRUE(refused([](SetChange* c) { c->step = SetStep::kRefuse; }));
  EXPECT_TRUE(refused([](SetChange* c) { c->step = SetStep::kRemove; }));
}

}  // namespace
}  // namespace hvd
