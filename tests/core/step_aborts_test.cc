// SPDX-License-Identifier: Apache-2.0
// StepAborts: which steps belong together. What follows from it is tested
// through AbortPolicy and Negotiator.
#include "core/control/step_aborts.h"

#include <cstdint>
#include <vector>

#include "harness.h"

namespace hvd {
namespace {

using Steps = std::vector<int64_t>;

TEST(step_aborts_knows_a_step_beside_many_eager_calls) {
  StepAborts aborts(2);
  aborts.Correspond({11, 21});
  for (int i = 0; i < 100; ++i) {
    aborts.Correspond({0, 0});
    aborts.Correspond({0, 21});  // an eager call of rank 0
  }
  EXPECT_TRUE((aborts.Corresponding(0, 11) == Steps{11, 21}));
  for (int64_t step = 12; step < 26; ++step) aborts.Correspond({step, step});
  aborts.Correspond({0, 0});
  EXPECT_TRUE((aborts.Corresponding(0, 11) == Steps{11, 21}));
}

TEST(step_aborts_knows_a_step_beside_another_one) {
  StepAborts aborts(2);
  aborts.Correspond({11, 21});
  for (int64_t i = 0; i < 100; ++i) {
    aborts.Correspond({12, 22});
    aborts.Correspond({13, 23});
  }
  EXPECT_TRUE((aborts.Corresponding(1, 21) == Steps{11, 21}));
  EXPECT_TRUE((aborts.Corresponding(0, 12) == Steps{12, 22}));
}

TEST(step_aborts_takes_the_newest_of_several) {
  StepAborts aborts(2);
  aborts.Correspond({11, 21});
  aborts.Correspond({11, 22});
  EXPECT_TRUE((aborts.Corresponding(0, 11) == Steps{11, 22}));
  aborts.Correspond({11, 21});
  EXPECT_TRUE((aborts.Corresponding(0, 11) == Steps{11, 21}));
}

TEST(step_aborts_forgets_old_steps) {
  StepAborts aborts(2);
  for (int64_t step = 1; step <= 17; ++step) aborts.Correspond({step, step});
  EXPECT_TRUE(aborts.Corresponding(0, 1).empty());
  EXPECT_TRUE((aborts.Corresponding(0, 2) == Steps{2, 2}));
}

TEST(step_aborts_ends_an_abort_that_has_hit_or_spared_every_rank) {
  StepAborts aborts(2);
  const SharedStatus why = Share(Cancelled("NaN"));
  aborts.Hit(aborts.Open(why), 0, 11, why);
  EXPECT_FALSE(aborts.quiet());
  aborts.Spare(1);
  EXPECT_TRUE(aborts.quiet());
}

}  // namespace
}  // namespace hvd
