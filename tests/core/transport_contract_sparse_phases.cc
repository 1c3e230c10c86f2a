// SPDX-License-Identifier: Apache-2.0
// Contract cases: sparse allreduces that fail, are cancelled or wait in each of
// their phases. The outputs are asked for between the ids and the values.
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "harness.h"
#include "sparse_call.h"
#include "transport_contract.h"

namespace hvd {
namespace {

// Tables of both ways: rows that few ranks share, and rows that all have.
std::unique_ptr<SparseCall> NewCall(ContractRank* self,
                                    const Transport& transport,
                                    int64_t chunks) {
  const int64_t rows = chunks == 0 ? 30 : self->Elements(chunks) / 16;
  return std::make_unique<SparseCall>(
      transport, Batch(),
      std::vector<SparseTable>{{100 * rows, 16, rows, 5, false},
                               {rows, 16, rows, 1, false}});
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Every other rank has the numbers, or an error that names `rank`.
void ExpectNumbersOrName(const SparseCall& call, int rank, StatusCode code) {
  if (call.status().ok()) return call.ExpectNumbers();
  EXPECT_EQ(call.status().code(), code);
  EXPECT_TRUE(Contains(call.status().message(), "ank " + std::to_string(rank)));
}

void Finish(Transport* transport) {
  Drive(transport, [&] { return transport->in_flight() == 0; });
}

void NoMemoryForSparseRows(ContractRank* self) {
  auto transport = self->NewTransport();
  const int failing = self->size() / 2;
  for (int64_t chunks : {0, 5}) {
    auto call = NewCall(self, *transport, chunks);
    if (self->rank() == failing) {
      call->FailToAllocate(ResourceExhausted("no memory here"));
    }
    call->Start(transport.get());
    Finish(transport.get());
    EXPECT_EQ(call->allocated(), 1);
    if (self->rank() == failing) {
      EXPECT_EQ(call->status().message(), "no memory here");
    } else {
      ExpectNumbersOrName(*call, failing, StatusCode::kResourceExhausted);
      EXPECT_FALSE(call->status().ok());
    }
    CheckSetIsWell(transport.get());
  }
}

// With the ids, when the outputs are asked for, and with the values.
void SparseCancelledInEachPhase(ContractRank* self) {
  auto transport = self->NewTransport();
  const int last = self->size() - 1;
  for (int64_t chunks : {0, 6}) {
    for (int steps_before = 0; steps_before < 3; ++steps_before) {
      for (int steps_after : {0, 1, 3, 6}) {
        auto call = NewCall(self, *transport, chunks);
        call->Start(transport.get());
        if (steps_before == 2) {
          Drive(transport.get(), [&] { return call->allocated() > 0; });
        } else if (steps_before == 1) {
          transport->Progress();
        }
        for (int i = 0; i < steps_after; ++i) transport->Progress();
        if (self->rank() == last && !call->done()) {
          const int allocated = call->allocated();
          transport->Cancel(call->id(), Cancelled("aborted"));
          EXPECT_TRUE(call->done());
          call->TakeMemory();
          Finish(transport.get());
          EXPECT_EQ(call->allocated(), allocated);
          EXPECT_TRUE(call->memory_untouched());
        } else {
          Finish(transport.get());
          if (self->rank() == last) {
            call->ExpectNumbers();
          } else {
            ExpectNumbersOrName(*call, last, StatusCode::kPeerLost);
          }
        }
        CheckSetIsWell(transport.get(), 300);
      }
    }
  }
}

// A rank that cannot take part from the start: all hear it with the ids.
void SparsePoisonWithTheIds(ContractRank* self) {
  auto transport = self->NewTransport();
  const int failing = self->size() - 1;
  auto call = NewCall(self, *transport, 3);
  if (self->rank() == failing) {
    call->batch().local_error = ResourceExhausted("none");
  }
  call->Start(transport.get());
  Finish(transport.get());
  EXPECT_FALSE(call->status().ok());
  EXPECT_EQ(call->allocated(), 0);
  if (self->rank() != failing) {
    EXPECT_TRUE(Contains(call->status().message(),
                         "rank " + std::to_string(failing) + " "));
  }
  CheckSetIsWell(transport.get());
}

// A NaN is found when values are packed, and fails the batch on every rank.
void SparseNaNAmongTheValues(ContractRank* self) {
  auto transport = self->NewTransport();
  const int failing = self->size() / 2;
  const std::string name = "table";
  for (SparseAlgo algo : {SparseAlgo::kAllgather, SparseAlgo::kReduceScatter}) {
    for (int64_t chunks : {0, 4}) {
      auto call = NewCall(self, *transport, chunks);
      call->batch().sparse_algo = algo;
      for (Segment& segment : call->batch().segments) segment.name = &name;
      call->batch().check_finite = true;
      const bool fails = !call->IdsOf(0, failing).empty();
      if (fails && self->rank() == failing) {
        *static_cast<float*>(call->first_value()) =
            std::numeric_limits<float>::quiet_NaN();
      }
      call->Start(transport.get());
      Finish(transport.get());
      if (!fails) {
        call->ExpectNumbers();
      } else {
        EXPECT_FALSE(call->status().ok());
        EXPECT_TRUE(Contains(call->status().message(), "table"));
        EXPECT_TRUE(Contains(call->status().message(),
                             "ank " + std::to_string(failing)));
      }
      CheckSetIsWell(transport.get());
    }
  }
}

// Rank 0 stops between the phases. Another set goes on.
void SparseFrozenBetweenPhases(ContractRank* self) {
  auto frozen = self->NewTransport(), other = self->NewTransport();
  auto call = NewCall(self, *frozen, 4);
  bool stops = false;
  call->OnAllocate([&] { stops = self->rank() == 0; });
  call->Start(frozen.get());
  for (int i = 0; i < 20; ++i) {
    if (!stops) frozen->Progress();
    CheckSetIsWell(other.get(), 1 + i * 400);
  }
  if (self->rank() == 0) Drive(frozen.get(), [&] { return stops; });
  CheckSetIsWell(other.get());
  Finish(frozen.get());
  call->ExpectNumbers();
}

// Two sets, in opposite order.
void SparseInInterleavedSets(ContractRank* self) {
  auto first = self->NewTransport(), second = self->NewTransport();
  Transport* sets[] = {first.get(), second.get()};
  const int begin = self->rank() % 2;
  std::vector<std::unique_ptr<SparseCall>> calls;
  for (int round = 0; round < 4; ++round) {
    for (int i : {begin, 1 - begin}) {
      calls.push_back(NewCall(self, *sets[i], round));
      calls.back()->Start(sets[i]);
      sets[i]->Progress();
    }
  }
  Drive({sets[0], sets[1]},
        [&] { return first->in_flight() == 0 && second->in_flight() == 0; });
  for (const auto& call : calls) call->ExpectNumbers();
}

// Many large ones at once want more staging memory than there is.
void ManySparseUnderPressure(ContractRank* self) {
  auto transport = self->NewTransport(), other = self->NewTransport();
  std::vector<std::unique_ptr<SparseCall>> calls;
  for (int i = 0; i < 8; ++i) {
    for (Transport* set : {transport.get(), other.get()}) {
      calls.push_back(NewCall(self, *set, i % 4 == 0 ? 5 : i % 4));
      calls.back()->Start(set);
    }
  }
  Drive({transport.get(), other.get()},
        [&] { return transport->in_flight() == 0 && other->in_flight() == 0; });
  for (const auto& call : calls) call->ExpectNumbers();
}

void SparseDestroyedBetweenPhases(ContractRank* self) {
  auto other = self->NewTransport(), transport = self->NewTransport();
  auto call = NewCall(self, *transport, 5);
  call->Start(transport.get());
  for (int i = 0; i < 2 * self->rank(); ++i) transport->Progress();
  transport.reset();
  call.reset();
  CheckSetIsWell(other.get(), self->Elements(3));
}

}  // namespace

std::vector<ContractCase> SparsePhaseCases() {
  return {{"NoMemoryForSparseRows", NoMemoryForSparseRows},
          {"SparseCancelledInEachPhase", SparseCancelledInEachPhase},
          {"SparsePoisonWithTheIds", SparsePoisonWithTheIds},
          {"SparseNaNAmongTheValues", SparseNaNAmongTheValues},
          {"SparseFrozenBetweenPhases", SparseFrozenBetweenPhases},
          {"SparseInInterleavedSets", SparseInInterleavedSets},
          {"ManySparseUnderPressure", ManySparseUnderPressure},
          {"SparseDestroyedBetweenPhases", SparseDestroyedBetweenPhases}};
}

}  // namespace hvd
