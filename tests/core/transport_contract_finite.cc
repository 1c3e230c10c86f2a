// SPDX-License-Identifier: Apache-2.0
// Contract cases: NaN and infinity, where a rank looks for them.
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness.h"
#include "transport_contract.h"
#include "typed_values.h"

namespace hvd {
namespace {

const std::string kNames[] = {"before", "culprit", "after"};

// Three tensors that travel together. One element of the second one may be
// other than 1.
class Group {
 public:
  Group(Batch batch, int size, int64_t count)
      : batch_(std::move(batch)),
        is_gathered_(batch_.verb != Verb::kAllreduce) {
    const auto bytes = static_cast<int64_t>(SizeOf(batch_.dtype));
    for (const std::string& name : kNames) {
      const int64_t out_count = is_gathered_ ? count * size : count;
      in_.emplace_back(count * bytes);
      out_.emplace_back(out_count * bytes);
      for (int64_t i = 0; i < count; ++i) {
        PutValue(batch_.dtype, in_.back().data(), i, 1.0);
      }
      batch_.segments.push_back(
          {in_.back().data(), out_.back().data(), count, &name});
      if (is_gathered_) {
        batch_.rows.push_back(std::vector<int64_t>(size, count));
      }
    }
  }

  void Put(int64_t at, double value) {
    PutValue(batch_.dtype, in_[1].data(), at, value);
  }
  // Makes the last two tensors the inputs of one call.
  void JoinLastTwo() { batch_.segments[2].name = batch_.segments[1].name; }
  double Result(int64_t at) const {
    return GetValue(batch_.dtype, out_[1].data(), at);
  }

  // Whoever gathers has looked before.
  Status Run(Transport* transport, bool checks) {
    batch_.check_finite = checks;
    if (checks && is_gathered_) {
      batch_.find_not_finite = [](const std::vector<Segment>&) { return 1; };
    }
    Status result = Internal("not done");
    transport->Start(batch_, [&](const Status& status) { result = status; });
    Drive(transport, [&] { return transport->in_flight() == 0; });
    return result;
  }

 private:
  Batch batch_;
  const bool is_gathered_;
  std::vector<std::vector<char>> in_, out_;
};

struct Case {
  DataType dtype;
  DataType wire_dtype;
  double value;
};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
const Case kCases[] = {
    {DataType::kFloat32, DataType::kFloat32, std::nan("")},
    {DataType::kFloat32, DataType::kFloat32, kInfinity},
    {DataType::kFloat64, DataType::kFloat64, -kInfinity},
    {DataType::kFloat16, DataType::kFloat16, std::nan("")},
    {DataType::kBfloat16, DataType::kBfloat16, kInfinity},
    // Finite, but not on the wire.
    {DataType::kFloat32, DataType::kFloat16, 1e6},
    {DataType::kFloat32, DataType::kBfloat16, -kInfinity},
};

Batch BatchOf(Verb verb, const Case& of) {
  Batch batch;
  batch.verb = verb;
  batch.dtype = of.dtype;
  batch.wire_dtype = verb == Verb::kAllreduce ? of.wire_dtype : of.dtype;
  return batch;
}

// `culprit` alone has such a value and knows it or looks for it. All ranks hear
// of it.
void CheckFound(ContractRank* self, Transport* transport, const Batch& batch,
                int culprit, int64_t count, int64_t at, double value) {
  Group group(batch, self->size(), count);
  const bool is_mine = self->rank() == culprit;
  if (is_mine) group.Put(at, value);
  const Status status = group.Run(transport, is_mine);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "rank " + std::to_string(culprit) +
                                  " has a NaN or an infinity in 'culprit'; "
                                  "HVD_CHECK_NUMERICS=1 makes this an error.");
  ASSERT_TRUE(status.cause() != nullptr);
  EXPECT_EQ(status.cause()->kind, CauseKind::kNotFinite);
  EXPECT_EQ(status.cause()->rank, culprit);
  EXPECT_EQ(status.cause()->tensor, "culprit");
}

void NotFiniteFailsAllRanks(ContractRank* self) {
  auto transport = self->NewTransport();
  int round = 0;
  const auto check = [&](Verb verb, const Case& of, int64_t count, int64_t at) {
    CheckFound(self, transport.get(), BatchOf(verb, of), round++ % self->size(),
               count, at, of.value);
  };
  for (int64_t count : {int64_t{1}, int64_t{40}, self->Elements(3)}) {
    // Such as lie in the share of each rank, the culprit's own among them.
    const std::set<int64_t> places = {0, count / 3, count / 2, count - 1};
    for (const int64_t at : places) {
      check(Verb::kAllreduce, kCases[0], count, at);
    }
  }
  for (const Case& of : kCases) {
    check(Verb::kAllreduce, of, 40, 13);
    if (of.value != 1e6) check(Verb::kAllgather, of, 40, 13);
  }
  CheckSetIsWell(transport.get());
}

void FiniteValuesPass(ContractRank* self) {
  auto transport = self->NewTransport();
  const int64_t count = self->Elements(2);
  for (const Case& of : kCases) {
    Batch batch = BatchOf(Verb::kAllreduce, of);
    batch.reduce_op = ReduceOp::kMax;
    Group group(batch, self->size(), count);
    const double largest = SizeOf(batch.wire_dtype) == 2 ? 65504.0 : 3e38;
    if (self->rank() == 0) group.Put(count / 2, largest);
    EXPECT_EQ(group.Run(transport.get(), true).message(), "");
    EXPECT_TRUE(group.Result(count / 2) > 0.99 * largest);
    EXPECT_TRUE(group.Result(count / 2) < 1.01 * largest);
    EXPECT_EQ(group.Result(0), 1.0);
  }
}

// Inputs of one call have one name. The error tells which of them it is.
void AnInputOfAGroupIsNumbered(ContractRank* self) {
  auto transport = self->NewTransport();
  Group group(BatchOf(Verb::kAllreduce, kCases[0]), self->size(), 40);
  group.JoinLastTwo();
  if (self->rank() == 0) group.Put(11, kInfinity);
  const Status status = group.Run(transport.get(), true);
  EXPECT_EQ(status.message(),
            "rank 0 has a NaN or an infinity in 'culprit' (input 0 of 2, from "
            "0); HVD_CHECK_NUMERICS=1 makes this an error.");
}

// Nobody is asked to look, or there is nothing to be found.
void OthersAreLeftAlone(ContractRank* self) {
  auto transport = self->NewTransport();
  Group group(BatchOf(Verb::kAllreduce, kCases[0]), self->size(), 40);
  group.Put(7, std::nan(""));
  EXPECT_EQ(group.Run(transport.get(), false).message(), "");
  EXPECT_TRUE(group.Result(7) != group.Result(7));
  Batch integers;
  integers.dtype = integers.wire_dtype = DataType::kInt32;
  Group of_integers(integers, self->size(), 40);
  of_integers.Put(7, 0x7f800000);
  EXPECT_EQ(of_integers.Run(transport.get(), true).message(), "");
  Batch broadcast = BatchOf(Verb::kBroadcast, kCases[0]);
  std::vector<float> values(40, std::numeric_limits<float>::infinity());
  broadcast.segments = {{values.data(), values.data(), 40}};
  broadcast.check_finite = true;
  Status result = Internal("not done");
  transport->Start(broadcast, [&](const Status& status) { result = status; });
  Drive(transport.get(), [&] { return transport->in_flight() == 0; });
  EXPECT_EQ(result.message(), "");
}

}  // namespace

std::vector<ContractCase> FiniteCases() {
  return {{"NotFiniteFailsAllRanks", NotFiniteFailsAllRanks},
          {"FiniteValuesPass", FiniteValuesPass},
          {"AnInputOfAGroupIsNumbered", AnInputOfAGroupIsNumbered},
          {"OthersAreLeftAlone", OthersAreLeftAlone}};
}

}  // namespace hvd
