// SPDX-License-Identifier: Apache-2.0
// AbortPolicy: lost steps, ended scopes, ranks that differ.
#include "core/control/abort_policy.h"

#include <string>

#include "harness.h"

namespace hvd {
namespace {

// Three ranks, which are ranks 10, 11 and 12 of the job.
struct Set {
  Matcher matcher{3};
  AbortPolicy aborts{{10, 11, 12}, &matcher};

  // False: it has failed at once.
  bool Submit(int rank, const std::string& name, int64_t step) {
    const Key key{name, 0};
    if (aborts.FailIfDoomed(rank, key, step)) return false;
    Matcher::Pending* const pending =
        matcher.FindOrAdd(key, Matcher::Clock::time_point());
    Matcher::Waiting waiting{nullptr, step, nullptr};
    matcher.SetSignature(&waiting, pending, Signature(), nullptr);
    matcher.Add(rank, pending, std::move(waiting));
    return true;
  }
  bool Waits(int rank, const std::string& name) {
    const Matcher::Pending* const pending = matcher.Find({name, 0});
    return pending != nullptr && pending->has(rank);
  }
  // All failures, such as "x@0: 0-1; y@0: 2".
  std::string Failures(std::string* text = nullptr) {
    std::string all;
    while (auto failure =
               aborts.TakeFailure([](const Key&, uint64_t) { return false; })) {
      if (text != nullptr) *text = failure->status.message();
      for (const FailedKey& key : failure->keys) {
        all += (all.empty() ? "" : "; ") + key.key.name + "@" +
               std::to_string(key.older) + ":";
        for (const RankRange& range : key.ranks) {
          all += " " + std::to_string(range.first) + "-" +
                 std::to_string(range.last);
        }
      }
    }
    return all;
  }
};

TEST(abort_policy_fails_the_steps_that_wait_for_a_lost_one) {
  Set set;
  set.Submit(0, "x", 1);
  set.Submit(1, "x", 2);
  set.aborts.Withdraw(1, {{"x", 0}, 2, Cancelled("NaN")});
  EXPECT_TRUE(set.aborts.any_lost());
  EXPECT_TRUE(set.matcher.begin() == set.matcher.end());
  std::string text;
  EXPECT_EQ(set.Failures(&text), "x@0: 0-1");
  EXPECT_EQ(text, "'x' failed because rank 11 aborted its step: NaN");
  // The last rank meets the abort with its first submission of the key. Its
  // next step does not.
  EXPECT_FALSE(set.Submit(2, "x", 3));
  EXPECT_TRUE(set.Submit(2, "x", 4));
  EXPECT_TRUE(set.Submit(0, "x", 5));
  EXPECT_EQ(set.Failures(), "x@0: 2-2");
}

TEST(abort_policy_knows_steps_that_were_agreed_in) {
  Set set;
  EXPECT_EQ(set.aborts.Agree({1, 2, 3}), 1u);
  EXPECT_EQ(set.aborts.Agree({1, 2, 3}), 2u);
  set.Submit(2, "y", 3);
  set.aborts.Withdraw(0, {{"x", 0}, 1, Cancelled("NaN")});
  EXPECT_EQ(set.Failures(), "y@0: 2-2");
  EXPECT_FALSE(set.Submit(1, "z", 2));
  EXPECT_TRUE(set.Submit(1, "z", 4));
}

TEST(abort_policy_fails_both_of_a_ranks_submissions_in_order) {
  Set set;
  set.Submit(0, "x", 1);
  set.Submit(0, "x", 2);
  set.aborts.Withdraw(0, {{"x", 0}, 2, Cancelled("late")});
  EXPECT_EQ(set.Failures(), "x@1: 0-0");
  EXPECT_TRUE(set.Waits(0, "x"));
}

TEST(abort_policy_fails_a_disagreement_and_what_waits_in_its_steps) {
  Set set;
  set.Submit(0, "y", 1);
  for (int rank = 0; rank < 3; ++rank) set.Submit(rank, "x", rank + 1);
  std::string text;
  set.aborts.Disagree(set.matcher.Find({"x", 0}), {1, 2, 3},
                      InvalidArgument("shapes differ"));
  EXPECT_EQ(set.Failures(&text), "x@0: 0-2; y@0: 0-0");
  EXPECT_EQ(text, "Its step was aborted: shapes differ");
  EXPECT_FALSE(set.Submit(2, "z", 3));
}

TEST(abort_policy_fails_what_an_ended_scope_would_have_to_bring) {
  Set set;
  set.Submit(0, "train/x", 0);
  set.Submit(1, "train/y", 0);
  set.Submit(0, "eval/x", 0);
  set.aborts.EndScope(1, {"train/", "out of data"});
  std::string text;
  EXPECT_EQ(set.Failures(&text), "train/x@0: 0-0");
  EXPECT_EQ(text, "'train/x' will not come from rank 11: out of data");
  EXPECT_TRUE(set.Waits(1, "train/y"));  // it asked before
  EXPECT_TRUE(set.Submit(2, "train/y", 0));
  EXPECT_FALSE(set.Submit(2, "train/x", 0));
  EXPECT_TRUE(set.Submit(2, "eval/x", 0));
  EXPECT_TRUE(set.Submit(1, "train/z", 0));  // which opens it again
  EXPECT_TRUE(set.Submit(2, "train/x", 0));
}

TEST(abort_policy_ends_a_name_alone) {
  Set set;
  for (const char* name : {"loss", "loss@1", "loss2", "loss/x"}) {
    set.Submit(0, name, 0);
  }
  set.aborts.EndScope(1, {"loss", "out of data"});
  EXPECT_FALSE(set.Waits(0, "loss") || set.Waits(0, "loss@1"));
  EXPECT_TRUE(set.Waits(0, "loss2") && set.Waits(0, "loss/x"));
  EXPECT_FALSE(set.Submit(2, "loss", 0));
  EXPECT_TRUE(set.Submit(2, "loss2", 0));
}

TEST(abort_policy_forgets_a_scope_that_all_ranks_have_ended) {
  Set set;
  for (int rank = 0; rank < 3; ++rank) {
    set.aborts.EndScope(rank, {"train/", "done"});
  }
  EXPECT_TRUE(set.Submit(0, "train/x", 0));
  set.aborts.EndScope(1, {"train/", "done"});
  set.aborts.EndScope(1, {"train/", ""});  // open again
  EXPECT_EQ(set.Failures(), "train/x@0: 0-0");
  EXPECT_TRUE(set.Submit(0, "train/x", 0));
}

TEST(abort_policy_fails_all_that_waits) {
  Set set;
  set.Submit(0, "x", 1);
  set.Submit(1, "y", 0);
  set.aborts.FailAll(InvalidArgument("names differ"));
  EXPECT_TRUE(set.matcher.begin() == set.matcher.end());
  const std::string failures = set.Failures();
  EXPECT_NE(failures.find("x@0: 0-0"), std::string::npos);
  EXPECT_NE(failures.find("y@0: 1-1"), std::string::npos);
  EXPECT_FALSE(set.Submit(0, "z", 1));
}

TEST(abort_policy_waits_for_no_rank_that_has_joined) {
  Set set;
  set.aborts.EndScope(1, {"train/", "out of data"});
  set.matcher.Join(1);
  EXPECT_TRUE(set.Submit(2, "train/x", 0));
  EXPECT_EQ(set.Failures(), "");
}

// Else the member would fail what was agreed before it.
TEST(abort_policy_tells_a_failure_behind_what_was_agreed_before_it) {
  Set set;
  set.aborts.Withdraw(0, {{"x", 0}, 1, Cancelled("NaN")});
  EXPECT_FALSE(set.Submit(0, "y", 1));
  const uint64_t agreed = set.aborts.Agree({4, 5, 6});  // on "z"
  EXPECT_FALSE(set.Submit(0, "z", 1));
  bool holds_back = true;
  const auto is_held_back = [&](const Key& key, uint64_t agreements) {
    return holds_back && key.name == "z" && agreed <= agreements;
  };
  const auto first = set.aborts.TakeFailure(is_held_back);
  ASSERT_TRUE(first.has_value() && first->keys.size() == 1);
  EXPECT_EQ(first->keys[0].key.name, "y");
  EXPECT_FALSE(set.aborts.TakeFailure(is_held_back).has_value());
  holds_back = false;
  EXPECT_EQ(set.Failures(), "z@0: 0-0");
}

}  // namespace
}  // namespace hvd
