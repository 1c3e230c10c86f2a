// SPDX-License-Identifier: Apache-2.0
// BatchPlanner: what is held back, what is fused, what is still here.
#include "core/control/batch_planner.h"

#include <string>

#include "harness.h"

namespace hvd {
namespace {

Agreed Tensor(const std::string& name, uint64_t number, int64_t bytes = 16) {
  Agreed agreed;
  agreed.key.name = name;
  agreed.signature = std::make_shared<Signature>();
  agreed.bytes = bytes;
  agreed.agreement = number;
  return agreed;
}

std::string NamesOf(const std::vector<Agreed>& batch) {
  std::string names;
  for (const Agreed& agreed : batch) names += agreed.key.name;
  return names;
}

TEST(batch_planner_holds_back_until_there_is_room) {
  BatchPlanner planner;
  planner.Add(Tensor("a", 1));
  planner.Plan(0, 100, false);
  EXPECT_FALSE(planner.has_batch());
  EXPECT_EQ(planner.FirstAgreements().size(), 1u);
  planner.Add(Tensor("b", 2));
  planner.Plan(1, 100, false);
  EXPECT_EQ(NamesOf(planner.TakeBatch()), "ab");
  EXPECT_FALSE(planner.has_batch());
  EXPECT_TRUE(planner.FirstAgreements().empty());
}

TEST(batch_planner_makes_no_more_batches_than_there_is_room_for) {
  BatchPlanner planner;
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    planner.Add(Tensor(name, 1, 40));
  }
  planner.Plan(2, 100, false);
  EXPECT_EQ(NamesOf(planner.TakeBatch()), "ab");
  EXPECT_EQ(NamesOf(planner.TakeBatch()), "cd");
  EXPECT_FALSE(planner.has_batch());
  planner.Add(Tensor("f", 2, 40));  // "e" may still grow
  planner.Plan(1, 100, false);
  EXPECT_EQ(NamesOf(planner.TakeBatch()), "ef");
}

TEST(batch_planner_plans_a_key_once_where_keys_repeat) {
  BatchPlanner planner;
  for (const char* name : {"a", "b", "a", "c"}) planner.Add(Tensor(name, 1));
  planner.Plan(4, 100, true);
  EXPECT_EQ(NamesOf(planner.TakeBatch()), "ab");
  EXPECT_FALSE(planner.has_batch());
  planner.Plan(4, 100, true);
  EXPECT_EQ(NamesOf(planner.TakeBatch()), "ac");
}

TEST(batch_planner_knows_the_first_agreement_on_what_is_here) {
  BatchPlanner planner;
  planner.Add(Tensor("a", 3, 100));
  planner.Add(Tensor("b", 4, 100));
  planner.Plan(1, 100, false);
  planner.Add(Tensor("a", 5, 100));
  auto first = planner.FirstAgreements();
  EXPECT_EQ(first.size(), 2u);
  EXPECT_EQ((first[{"a", 0}]), 3u);  // in a batch
  EXPECT_EQ((first[{"b", 0}]), 4u);  // held back
  planner.TakeBatch();
  EXPECT_EQ((planner.FirstAgreements()[{"a", 0}]), 5u);
}

}  // namespace
}  // namespace hvd
