// SPDX-License-Identifier: Apache-2.0
// ResponseCache: numbers, first dimensions, order of use.
#include "core/control/response_cache.h"

#include "core/verbs/verb_rules.h"
#include "harness.h"

namespace hvd {
namespace {

std::shared_ptr<const Signature> Allreduce(Shape shape) {
  Signature signature;
  signature.shapes = {std::move(shape)};
  return std::make_shared<Signature>(signature);
}

TEST(response_cache_finds_only_the_same_signature) {
  ResponseCache cache;
  cache.Insert(7, "x", Allreduce({2}));
  EXPECT_EQ(cache.Find("x", *Allreduce({2})), 7u);
  EXPECT_EQ(cache.Find("x", *Allreduce({3})), 0u);
  EXPECT_EQ(cache.Find("y", *Allreduce({2})), 0u);
  Key memory;
  EXPECT_TRUE((cache.Get(7)->KeyOf(0, &memory) == Key{"x", 0}));
  EXPECT_TRUE((cache.Get(7)->KeyOf(3, &memory) == Key{"x", 3}));
  EXPECT_TRUE(cache.Get(8) == nullptr);
}

TEST(response_cache_lets_an_allgathers_first_dimension_change) {
  Signature gather;
  gather.verb = Verb::kAllgather;
  gather.shapes = {{4, 2}, {9}};
  ResponseCache cache;
  cache.Insert(1, "x", std::make_shared<Signature>(gather));
  gather.shapes = {{5, 2}, {0}};
  EXPECT_EQ(cache.Find("x", gather), 1u);
  EXPECT_TRUE((FirstDims(gather) == Shape{5, 0}));
  gather.shapes = {{5, 3}, {0}};
  EXPECT_EQ(cache.Find("x", gather), 0u);
  gather.shapes = {{5, 2}};
  EXPECT_EQ(cache.Find("x", gather), 0u);
}

TEST(response_cache_a_new_number_replaces_the_old_one) {
  ResponseCache cache;
  cache.Insert(1, "x", Allreduce({2}));
  cache.Insert(2, "x", Allreduce({3}));
  EXPECT_EQ(cache.size(), 1u);
  EXPECT_TRUE(cache.Get(1) == nullptr);
  EXPECT_EQ(cache.NumberOf("x"), 2u);
  cache.Erase(1);  // long gone: harmless
  EXPECT_EQ(cache.NumberOf("x"), 2u);
}

TEST(response_cache_names_those_unused_for_longest) {
  ResponseCache cache;
  for (SignatureNumber id = 1; id <= 4; ++id) {
    cache.Insert(id, "t" + std::to_string(id), Allreduce({1}));
  }
  cache.Touch(1);
  EXPECT_TRUE((cache.Oldest(2) == std::vector<SignatureNumber>{2, 3}));
  cache.Erase(2);
  EXPECT_TRUE((cache.Oldest(9) == std::vector<SignatureNumber>{3, 4, 1}));
}

}  // namespace
}  // namespace hvd
