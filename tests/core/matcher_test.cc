// SPDX-License-Identifier: Apache-2.0
// Matcher: fronts, later submissions, places, numbers.
#include "core/control/matcher.h"

#include "harness.h"

namespace hvd {
namespace {

const Key kX{"x", 0};

Signature Allreduce(Shape shape) {
  Signature signature;
  signature.shapes = {std::move(shape)};
  return signature;
}

bool Submit(Matcher* matcher, int rank, int64_t step,
            const Signature& signature = Allreduce({4})) {
  Matcher::Pending* const pending =
      matcher->FindOrAdd(kX, Matcher::Clock::time_point());
  Matcher::Waiting waiting{nullptr, step, nullptr};
  matcher->SetSignature(&waiting, pending, signature, nullptr);
  return matcher->Add(rank, pending, std::move(waiting));
}

TEST(matcher_says_when_all_ranks_have_submitted_a_key) {
  Matcher matcher(3);
  EXPECT_TRUE(matcher.Find(kX) == nullptr);
  EXPECT_FALSE(Submit(&matcher, 2, 1));
  EXPECT_FALSE(Submit(&matcher, 0, 1));
  EXPECT_FALSE(Submit(&matcher, 0, 2));  // that rank's next step
  EXPECT_FALSE(matcher.Find(kX)->has(1));
  EXPECT_TRUE(Submit(&matcher, 1, 1));
  EXPECT_TRUE(matcher.IsComplete(*matcher.Find(kX)));
}

TEST(matcher_lets_later_submissions_take_the_place_of_the_fronts) {
  Matcher matcher(2);
  Submit(&matcher, 0, 1);
  Submit(&matcher, 0, 2);
  Submit(&matcher, 0, 3);
  Submit(&matcher, 1, 1);
  Matcher::Pending* const pending = matcher.Find(kX);
  matcher.Heard(Matcher::Clock::time_point(std::chrono::seconds(7)));
  matcher.ClearFronts(pending);
  EXPECT_FALSE(matcher.IsComplete(*pending));
  EXPECT_EQ(pending->PlacesOf(0), 2);
  EXPECT_EQ(pending->At(0, 0)->step, 2);
  EXPECT_EQ(pending->At(0, 1)->step, 3);
  EXPECT_EQ(pending->PlacesOf(1), 0);
  // They have not waited before.
  EXPECT_TRUE(pending->since == matcher.last_submission());
}

TEST(matcher_moves_submissions_up_when_one_is_taken_out) {
  for (int place = 0; place < 3; ++place) {
    Matcher matcher(2);
    for (int64_t step = 1; step <= 3; ++step) Submit(&matcher, 0, step);
    Submit(&matcher, 1, 9);
    Matcher::Pending* const pending = matcher.Find(kX);
    EXPECT_EQ(pending->PlaceOf(0, place + 1), place);
    matcher.TakeOut(pending, 0, place);
    EXPECT_EQ(pending->PlacesOf(0), 2);
    EXPECT_EQ(pending->PlaceOf(0, place + 1), -1);
    EXPECT_EQ(pending->At(0, 0)->step, place == 0 ? 2 : 1);
    EXPECT_EQ(pending->At(0, 1)->step, place == 2 ? 2 : 3);
    EXPECT_TRUE(pending->At(0, 2) == nullptr);
    EXPECT_EQ(pending->At(1, 0)->step, 9);
  }
}

TEST(matcher_forgets_a_key_that_nobody_waits_for) {
  Matcher matcher(2);
  Submit(&matcher, 0, 1);
  matcher.SetNumber(matcher.Find(kX), 5);
  matcher.SetNumber(matcher.Find(kX), 6);  // it has one
  EXPECT_TRUE(matcher.FindByNumber(5) == matcher.Find(kX));
  EXPECT_TRUE(matcher.FindByNumber(6) == nullptr);
  matcher.EraseIfEmpty(kX);
  EXPECT_TRUE(matcher.begin() != matcher.end());
  matcher.TakeOut(matcher.Find(kX), 0, 0);
  matcher.EraseIfEmpty(kX);
  EXPECT_TRUE(matcher.begin() == matcher.end());
  EXPECT_TRUE(matcher.FindByNumber(5) == nullptr);
  // What comes next has nothing of what was erased.
  Submit(&matcher, 1, 1, Allreduce({8}));
  EXPECT_TRUE((matcher.Find(kX)->signature->shapes[0] == Shape{8}));
  EXPECT_EQ(matcher.Find(kX)->number, 0u);
}

TEST(matcher_keeps_a_signature_once_unless_ranks_differ) {
  Matcher matcher(3);
  Submit(&matcher, 0, 1);
  Submit(&matcher, 1, 1);
  Submit(&matcher, 2, 1, Allreduce({5}));
  const Matcher::Pending& pending = *matcher.Find(kX);
  EXPECT_TRUE(pending.fronts[0].signature == pending.signature.get());
  EXPECT_TRUE(pending.fronts[1].signature == pending.signature.get());
  EXPECT_TRUE((pending.fronts[2].signature->shapes[0] == Shape{5}));
  EXPECT_TRUE(pending.fronts[2].extra != nullptr);
}

}  // namespace
}  // namespace hvd
