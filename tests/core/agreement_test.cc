// SPDX-License-Identifier: Apache-2.0
// Agreement: what must be equal, and the sentence when it is not.
#include "core/control/agreement.h"

#include "harness.h"

namespace hvd {
namespace {

// What rank i of the job asks for is signatures[i].
Status Check(const std::vector<Signature>& signatures,
             const Status& last_error = Status::Ok()) {
  const Status ok;
  std::vector<RankRequest> ranks;
  for (size_t i = 0; i < signatures.size(); ++i) {
    const bool last = i + 1 == signatures.size();
    ranks.push_back(
        {static_cast<int>(i), &signatures[i], last ? &last_error : &ok});
  }
  return CheckAgreement("x", ranks);
}

Signature Tensor(Verb verb, Shape shape) {
  Signature signature;
  signature.verb = verb;
  signature.shapes = {std::move(shape)};
  return signature;
}

TEST(agreement_equal_requests_agree) {
  for (Verb verb : {Verb::kAllreduce, Verb::kAllgather, Verb::kBroadcast}) {
    EXPECT_TRUE(Check({Tensor(verb, {2, 3}), Tensor(verb, {2, 3})}).ok());
  }
  EXPECT_TRUE(Check({Tensor(Verb::kAllgather, {0, 3}),
                     Tensor(Verb::kAllgather, {9, 3})})
                  .ok());
}

TEST(agreement_every_rank_and_value_is_named) {
  Status status =
      Check({Tensor(Verb::kAllreduce, {2}), Tensor(Verb::kAllreduce, {2}),
             Tensor(Verb::kAllreduce, {3, 1}), Tensor(Verb::kAllreduce, {2})});
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "The ranks disagree on the shape of allreduce 'x' (ranks 0-1, 3: "
            "[2]; rank 2: [3,1]). Pass the same shape on every rank.");
}

TEST(agreement_each_property_is_compared) {
  struct Case {
    const char* word;
    Verb verb;
    void (*change)(Signature*);
  };
  const Case cases[] = {
      {"operation", Verb::kAllreduce,
       [](Signature* s) { s->verb = Verb::kBroadcast; }},
      {"kind of tensor", Verb::kAllreduce,
       [](Signature* s) { s->verb = Verb::kSparseAllreduce; }},
      {"dtype", Verb::kAllgather,
       [](Signature* s) { s->dtype = DataType::kInt32; }},
      {"device", Verb::kBroadcast,
       [](Signature* s) { s->memory = MemoryKind::kCuda; }},
      {"number of tensors", Verb::kAllreduce,
       [](Signature* s) { s->shapes.push_back({1}); }},
      {"reduce op", Verb::kAllreduce,
       [](Signature* s) { s->reduce_op = ReduceOp::kMax; }},
      {"prescale_factor", Verb::kAllreduce,
       [](Signature* s) { s->prescale = 0.1; }},
      {"postscale_factor", Verb::kAllreduce,
       [](Signature* s) { s->postscale = 2; }},
      {"compression", Verb::kAllreduce,
       [](Signature* s) { s->wire_dtype = DataType::kFloat16; }},
      {"root rank", Verb::kBroadcast, [](Signature* s) { s->root = 1; }},
      {"shape", Verb::kBroadcast, [](Signature* s) { s->shapes[0] = {9}; }},
      {"shape behind the first dimension", Verb::kAllgather,
       [](Signature* s) { s->shapes[0] = {2, 9}; }},
      {"shape behind the first dimension", Verb::kAllgather,
       [](Signature* s) { s->shapes[0] = {2}; }},
  };
  for (const Case& c : cases) {
    Signature first = Tensor(c.verb, {2, 3});
    Signature second = first;
    c.change(&second);
    Status status = Check({first, second});
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find(std::string("disagree on the ") + c.word +
                                    " of "),
              std::string::npos);
    EXPECT_NE(status.message().find("rank 0: "), std::string::npos);
    EXPECT_NE(status.message().find("rank 1: "), std::string::npos);
  }
}

TEST(agreement_a_gathered_scalar_is_refused) {
  Status status =
      Check({Tensor(Verb::kAllgather, {}), Tensor(Verb::kAllgather, {})});
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("scalar"), std::string::npos);
}

TEST(agreement_a_ranks_own_error_is_everybodys) {
  Status status =
      Check({Tensor(Verb::kAllreduce, {2}), Tensor(Verb::kAllreduce, {3})},
            InvalidArgument("no such root"));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "'x' failed on rank 1: no such root");
}

}  // namespace
}  // namespace hvd
