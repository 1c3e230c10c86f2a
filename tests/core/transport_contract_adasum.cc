// SPDX-License-Identifier: Apache-2.0
// Contract cases: allreduces by Adasum, against float64 on whole vectors.
#include <cmath>
#include <memory>
#include <string>

#include "adasum_call.h"
#include "harness.h"
#include "transport_contract.h"
#include "typed_values.h"

namespace hvd {
namespace {

Batch HeadOf(DataType dtype, DataType wire_dtype) {
  Batch head;
  head.dtype = dtype;
  head.wire_dtype = wire_dtype;
  return head;
}
Batch HeadOf(DataType dtype = DataType::kFloat32) {
  return HeadOf(dtype, dtype);
}

// Every rank owns something of the second one.
std::vector<int64_t> FewCounts(const ContractRank& self) {
  return {1, 1024 * self.size() + 5, 0, 17, 3000};
}

void NumbersOfAdasum(ContractRank* self) {
  auto transport = self->NewTransport();
  const DataType kTypes[] = {DataType::kFloat16, DataType::kBfloat16,
                             DataType::kFloat32, DataType::kFloat64};
  for (const DataType dtype : kTypes) {
    for (const DataType wire_dtype : kTypes) {
      if (dtype != wire_dtype && SizeOf(wire_dtype) > 2) continue;
      // In the other precision, the same code runs on other types.
      if (kElementsAreSlow && dtype != DataType::kFloat32) continue;
      AdasumCall call(*transport, HeadOf(dtype, wire_dtype), FewCounts(*self));
      call.Run(transport.get());
      call.ExpectNumbers(transport.get());
    }
  }
}

void LikenessesOfAdasum(ContractRank* self) {
  auto transport = self->NewTransport();
  for (const Likeness likeness : {Likeness::kEqual, Likeness::kOpposite,
                                  Likeness::kOrthogonal, Likeness::kSomeZero}) {
    AdasumCall call(*transport, HeadOf(), FewCounts(*self), likeness);
    call.Run(transport.get());
    call.ExpectNumbers(transport.get());
    for (int64_t k : {0, 7, 16}) {
      double sum = 0.0;
      for (int r = 0; r < self->size(); ++r) sum += call.Input(3, r, k);
      // It is one of the vectors where these are equal, and their sum where
      // orthogonal.
      if (likeness == Likeness::kEqual) {
        EXPECT_NEAR(call.Result(3, k), call.Input(3, 0, k), 1e-6);
      } else if (likeness == Likeness::kOrthogonal) {
        EXPECT_NEAR(call.Result(3, k), sum, 1e-6);
      }
    }
  }
}

void ScalesOfAdasum(ContractRank* self) {
  auto transport = self->NewTransport();
  for (const DataType dtype : {DataType::kFloat16, DataType::kFloat32}) {
    Batch head = HeadOf(dtype);
    head.prescale = 0.5;
    head.postscale = 3.0;
    AdasumCall call(*transport, head, FewCounts(*self));
    call.Run(transport.get());
    call.ExpectNumbers(transport.get());
  }
}

// Longer than a round, with tensors that are longer than one, and shorter.
void RoundsOfAdasum(ContractRank* self) {
  auto transport = self->NewTransport();
  AdasumCall call(*transport, HeadOf(),
                  {self->Elements(7), 3, self->Elements(8) + 1,
                   self->Elements(17) + 2, 0, self->Elements(1)});
  call.Run(transport.get());
  call.ExpectNumbers(transport.get());
}

// Each tensor has the same bits alone and among others, with batches of other
// verbs around.
void FusedAdasumHasTheSameBits(ContractRank* self) {
  auto transport = self->NewTransport();
  for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
    const std::vector<int64_t> counts = {5, 1024 * self->size() + 99,
                                         self->Elements(7) + 1, 40, 4000};
    AdasumCall fused(*transport, HeadOf(dtype), counts);
    fused.Start(transport.get());
    std::vector<std::unique_ptr<AdasumCall>> alone;
    for (size_t i = 0; i < counts.size(); ++i) {
      alone.push_back(std::make_unique<AdasumCall>(
          *transport, HeadOf(dtype), std::vector<int64_t>{counts[i]},
          Likeness::kSome, static_cast<int>(i)));
      alone.back()->Start(transport.get());
      CheckSetIsWell(transport.get(), 700);
    }
    Drive(transport.get(), [&] { return transport->in_flight() == 0; });
    for (size_t i = 0; i < counts.size(); ++i) {
      EXPECT_EQ(alone[i]->status().message(), "");
      EXPECT_TRUE(alone[i]->out()[0] == fused.out()[i]);
    }
  }
}

void AdasumInPlace(ContractRank* self) {
  auto transport = self->NewTransport();
  AdasumCall apart(*transport, HeadOf(), {5000, 40}),
      in_place(*transport, HeadOf(), {5000, 40});
  for (Segment& segment : in_place.batch().segments) {
    segment.out = const_cast<void*>(segment.in);
  }
  apart.Run(transport.get());
  in_place.Run(transport.get());
  EXPECT_EQ(in_place.status().message(), "");
  for (size_t i = 0; i < 2; ++i) {
    const auto* const out =
        static_cast<const char*>(in_place.batch().segments[i].out);
    EXPECT_TRUE(std::equal(apart.out()[i].begin(), apart.out()[i].end(), out));
  }
}

void AdasumOfSomeRanks(ContractRank* self) {
  if (self->size() < 3) return;
  // All but the first, and not in pairs as among all.
  std::vector<int> ranks;
  for (int rank = 1; rank < self->size(); ++rank) ranks.push_back(rank);
  if (self->rank() == 0) return self->SkipTransport();
  auto transport = self->NewTransport(ranks);
  AdasumCall call(*transport, HeadOf(), FewCounts(*self));
  call.Run(transport.get());
  call.ExpectNumbers(transport.get());
}

// A rank that has joined counts as one that has zeros, and it gets nothing.
void AdasumWithJoinedRanks(ContractRank* self) {
  auto transport = self->NewTransport();
  for (const DataType wire : {DataType::kFloat32, DataType::kBfloat16}) {
    Batch head = HeadOf(DataType::kFloat32, wire);
    head.prescale = 2.0;
    AdasumCall call(*transport, head, FewCounts(*self), Likeness::kSomeZero);
    const bool is_absent = self->rank() % 3 == 0;
    if (is_absent) {
      for (Segment& segment : call.batch().segments) {
        segment.in = segment.out = nullptr;
      }
    }
    call.Run(transport.get());
    EXPECT_EQ(call.status().message(), "");
    if (is_absent) continue;
    for (const size_t tensor : {size_t{1}, size_t{3}}) {
      const Vector expected = call.Expected(tensor);
      for (size_t k = 0; k < expected.size(); ++k) {
        const double tolerance = Epsilon(wire) * 8;
        if (!EXPECT_NEAR(call.Result(tensor, k), expected[k], tolerance)) break;
      }
    }
  }
}

// After every number of steps until nothing is left to cancel. So it is in
// every phase.
void AdasumCancelledInEachPhase(ContractRank* self) {
  auto transport = self->NewTransport();
  const int last = self->size() - 1;
  for (int64_t count : {int64_t{40}, self->Elements(40)}) {
    for (int steps : {0, 2, 4, 6, 10, 17, 30}) {
      if (count == 40 && steps > 6) break;  // it is over by then
      AdasumCall call(*transport, HeadOf(), {count, 1200});
      call.Start(transport.get());
      for (int i = 0; i < steps; ++i) transport->Progress();
      const bool cancels = self->rank() == last && !call.done();
      if (cancels) {
        transport->Cancel(call.id(), Cancelled("aborted"));
        EXPECT_TRUE(call.done());
        call.TakeMemory();
      }
      Drive(transport.get(), [&] { return transport->in_flight() == 0; });
      if (cancels) {
        EXPECT_TRUE(call.memory_untouched());
      } else if (call.status().ok()) {
        const Vector expected = call.Expected(0);
        for (int64_t k = 0; k < count; k += 37) {
          EXPECT_NEAR(call.Result(0, k), expected[k], 1e-5);
        }
      } else {
        EXPECT_EQ(call.status().code(), StatusCode::kPeerLost);
        EXPECT_TRUE(call.status().message().find("rank " +
                                                 std::to_string(last) + " ") !=
                    std::string::npos);
      }
      CheckSetIsWell(transport.get(), 3000);
    }
  }
}

// A rank that cannot take part from the start fails it everywhere.
void LocalErrorOfAdasum(ContractRank* self) {
  auto transport = self->NewTransport();
  const int failing = self->size() / 2;
  for (int64_t count : {int64_t{0}, int64_t{40}, self->Elements(40)}) {
    AdasumCall call(*transport, HeadOf(), {count, 3});
    if (self->rank() == failing) {
      call.batch().local_error = ResourceExhausted("none");
      for (Segment& segment : call.batch().segments) segment.out = nullptr;
    }
    call.Run(transport.get());
    EXPECT_EQ(call.status().code(), StatusCode::kResourceExhausted);
    CheckSetIsWell(transport.get());
  }
}

// Wherever it lies: in what this rank owns, and in what others do.
void AdasumFindsWhatIsNotFinite(ContractRank* self) {
  auto transport = self->NewTransport();
  const int64_t count = 1024 * self->size();
  for (int owner = 0; owner < self->size(); ++owner) {
    for (const DataType wire : {DataType::kFloat32, DataType::kFloat16}) {
      if (kElementsAreSlow && owner % 3 != 0) continue;
      const int culprit = (owner + 1) % self->size();
      AdasumCall call(*transport, HeadOf(DataType::kFloat32, wire),
                      {3, count, 5});
      if (self->rank() == culprit) {
        // Too large for float16 alone.
        call.Put(1, 1024 * owner + 9,
                 wire == DataType::kFloat16 ? 1e6 : std::nan(""));
        call.batch().check_finite = true;
      }
      call.Run(transport.get());
      EXPECT_EQ(call.status().message(),
                "rank " + std::to_string(culprit) +
                    " has a NaN or an infinity in 'tensor 1'; "
                    "HVD_CHECK_NUMERICS=1 makes this an error.");
      CheckSetIsWell(transport.get());
    }
  }
}

void AdasumOfWhatHasNoDotProduct(ContractRank* self) {
  auto transport = self->NewTransport();
  const auto status_of = [&](const Batch& head) {
    AdasumCall call(*transport, head, {4});
    call.Run(transport.get());
    return call.status().message();
  };
  EXPECT_EQ(status_of(HeadOf(DataType::kInt32)),
            "Adasum is an allreduce of floating point, not allreduce of "
            "int32.");
  Batch scatter = HeadOf();
  scatter.verb = Verb::kReducescatter;
  EXPECT_NE(status_of(scatter), "");
  CheckSetIsWell(transport.get());
}

void ManyAdasumsInFlight(ContractRank* self) {
  auto transport = self->NewTransport(), other = self->NewTransport();
  std::vector<std::unique_ptr<AdasumCall>> calls;
  for (int i = 0; i < 30; ++i) {
    Transport* const set = i % 3 == 0 ? other.get() : transport.get();
    const int64_t count = i % 15 == 0 ? self->Elements(5) : 30 * i;
    calls.push_back(std::make_unique<AdasumCall>(
        *set, HeadOf(), std::vector<int64_t>{count, i}));
    calls.back()->Start(set);
  }
  Drive({transport.get(), other.get()},
        [&] { return transport->in_flight() == 0 && other->in_flight() == 0; });
  for (const auto& call : calls) call->ExpectNumbers(transport.get());
}

}  // namespace

std::vector<ContractCase> AdasumCases() {
  return {{"NumbersOfAdasum", NumbersOfAdasum},
          {"LikenessesOfAdasum", LikenessesOfAdasum},
          {"ScalesOfAdasum", ScalesOfAdasum},
          {"RoundsOfAdasum", RoundsOfAdasum},
          {"FusedAdasumHasTheSameBits", FusedAdasumHasTheSameBits},
          {"AdasumInPlace", AdasumInPlace},
          {"AdasumOfSomeRanks", AdasumOfSomeRanks},
          {"AdasumWithJoinedRanks", AdasumWithJoinedRanks},
          {"AdasumCancelledInEachPhase", AdasumCancelledInEachPhase},
          {"LocalErrorOfAdasum", LocalErrorOfAdasum},
          {"AdasumFindsWhatIsNotFinite", AdasumFindsWhatIsNotFinite},
          {"AdasumOfWhatHasNoDotProduct", AdasumOfWhatHasNoDotProduct},
          {"ManyAdasumsInFlight", ManyAdasumsInFlight}};
}

}  // namespace hvd
