// SPDX-License-Identifier: Apache-2.0
// Contract cases: batches of several phases that fail, are cancelled or wait in
// each of them, and between two.
//
// An alltoall has a phase of sizes and one of data. The outputs are asked for
// between them. So a rank knows from `allocate` where it is.
#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "harness.h"
#include "transport_contract.h"

namespace hvd {
namespace {

// An alltoall of `count` floats from each rank, as evenly as can be. Those of
// rank r are `base` + r.
class Exchange {
 public:
  Exchange(const Transport& transport, int64_t count, int64_t base = 1)
      : rank_(transport.rank()),
        size_(transport.size()),
        base_(base),
        in_(static_cast<size_t>(count), ValueOf(rank_)) {
    batch_.verb = Verb::kAlltoall;
    std::vector<int64_t>& rows = batch_.rows.emplace_back();
    for (int to = 0; to < size_; ++to) {
      rows.push_back(ScatteredRows(count, to, size_).size());
    }
    batch_.segments = {{in_.data(), nullptr, count}};
    batch_.segments[0].rows = count;
    batch_.allocate = [this](const RankCounts& rows,
                             std::vector<void*>* outputs) {
      EXPECT_FALSE(done_);
      ++allocated_;
      HVD_RETURN_IF_ERROR(allocate_error_);
      int64_t total = 0;
      for (int64_t from : rows[0]) total += from;
      out_.assign(static_cast<size_t>(total), -1.0f);
      outputs->push_back(out_.data());
      if (on_allocate_) on_allocate_();
      return Status::Ok();
    };
  }

  void Start(Transport* transport) {
    id_ = transport->Start(batch_, [this](const Status& status) {
      EXPECT_FALSE(done_);
      done_ = true;
      status_ = status;
    });
  }

  // The rows of every rank, in rank order.
  void ExpectNumbers() const {
    EXPECT_EQ(status_.message(), "");
    const auto share = static_cast<int64_t>(out_.size()) / size_;
    for (int from = 0; from < size_; ++from) {
      const auto begin = out_.begin() + from * share;
      EXPECT_EQ(std::count(begin, begin + share, ValueOf(from)), share);
    }
  }

  // What the caller may do once it was told: the memory is its own.
  void TakeMemory() {
    std::vector<float>().swap(in_);
    std::fill(out_.begin(), out_.end(), 77.0f);
  }
  bool memory_untouched() const {
    return std::count(out_.begin(), out_.end(), 77.0f) ==
           static_cast<std::ptrdiff_t>(out_.size());
  }

  Batch& batch() { return batch_; }
  BatchId id() const { return id_; }
  bool done() const { return done_; }
  int allocated() const { return allocated_; }
  const Status& status() const { return status_; }
  void FailToAllocate(Status error) { allocate_error_ = std::move(error); }
  void OnAllocate(std::function<void()> call) {
    on_allocate_ = std::move(call);
  }

 private:
  float ValueOf(int rank) const { return static_cast<float>(base_ + rank); }

  const int rank_, size_;
  const int64_t base_;
  std::vector<float> in_, out_;
  Batch batch_;
  BatchId id_ = 0;
  bool done_ = false;
  int allocated_ = 0;
  Status status_ = Internal("not done");
  Status allocate_error_;
  std::function<void()> on_allocate_;
};

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Every other rank has the numbers, or an error that names `rank`.
void ExpectNumbersOrName(const Exchange& exchange, int rank, StatusCode code) {
  if (exchange.status().ok()) return exchange.ExpectNumbers();
  EXPECT_EQ(exchange.status().code(), code);
  EXPECT_TRUE(Contains(exchange.status().message(),
                       "rank " + std::to_string(rank) + " "));
}

void Finish(Transport* transport) {
  Drive(transport, [&] { return transport->in_flight() == 0; });
}

// The caller's memory is asked for late, on each rank on its own, and one rank
// has none: before the data moves, all hear of it.
void NoMemoryBetweenPhases(ContractRank* self) {
  auto transport = self->NewTransport();
  const int failing = self->size() / 2;
  for (int64_t count : {int64_t{0}, int64_t{40}, self->Elements(7)}) {
    Exchange exchange(*transport, count);
    if (self->rank() == failing) {
      exchange.FailToAllocate(ResourceExhausted("no memory here"));
    }
    exchange.Start(transport.get());
    Finish(transport.get());
    EXPECT_EQ(exchange.allocated(), 1);
    if (self->rank() == failing) {
      EXPECT_EQ(exchange.status().message(), "no memory here");
    } else {
      ExpectNumbersOrName(exchange, failing, StatusCode::kResourceExhausted);
      EXPECT_FALSE(exchange.status().ok());
    }
    CheckSetIsWell(transport.get());
  }
}

// In the phase of sizes, between the phases, and in the phase of data.
void CancelledInEachPhase(ContractRank* self) {
  auto transport = self->NewTransport();
  const int last = self->size() - 1;
  for (int64_t count : {int64_t{40}, self->Elements(12)}) {
    for (int steps_before = 0; steps_before < 3; ++steps_before) {
      for (int steps_after : {0, 3}) {
        Exchange exchange(*transport, count);
        exchange.Start(transport.get());
        if (steps_before == 2) {
          Drive(transport.get(), [&] { return exchange.allocated() > 0; });
        } else if (steps_before == 1) {
          transport->Progress();
        }
        for (int i = 0; i < steps_after; ++i) transport->Progress();
        const bool cancels = self->rank() == last && !exchange.done();
        if (cancels) {
          const int allocated = exchange.allocated();
          transport->Cancel(exchange.id(), Cancelled("aborted"));
          EXPECT_TRUE(exchange.done());
          exchange.TakeMemory();
          Finish(transport.get());
          EXPECT_EQ(exchange.allocated(), allocated);
          EXPECT_TRUE(exchange.memory_untouched());
        } else {
          Finish(transport.get());
          if (self->rank() == last) {
            exchange.ExpectNumbers();
          } else {
            ExpectNumbersOrName(exchange, last, StatusCode::kPeerLost);
          }
        }
        CheckSetIsWell(transport.get(), 3000);
      }
    }
  }
}

// A rank that cannot take part from the start, and one that finds a NaN.
void PoisonInThePhaseOfSizes(ContractRank* self) {
  auto transport = self->NewTransport();
  const int failing = self->size() - 1;
  for (const bool finds_nan : {false, true}) {
    Exchange exchange(*transport, self->Elements(3));
    if (self->rank() == failing) {
      if (finds_nan) {
        exchange.batch().find_not_finite = [](const std::vector<Segment>&) {
          return 0;
        };
      } else {
        exchange.batch().local_error = ResourceExhausted("none");
      }
    }
    exchange.Start(transport.get());
    Finish(transport.get());
    EXPECT_FALSE(exchange.status().ok());
    // Nobody was asked for memory, because all have heard it with the sizes.
    EXPECT_EQ(exchange.allocated(), 0);
    if (self->rank() != failing) {
      EXPECT_TRUE(Contains(exchange.status().message(),
                           "ank " + std::to_string(failing)));
    }
    CheckSetIsWell(transport.get());
  }
}

// Rank 0 stops between the phases. Another set goes on, and so do small batches
// of this set when it comes back.
void FrozenBetweenPhases(ContractRank* self) {
  auto frozen = self->NewTransport(), other = self->NewTransport();
  Exchange exchange(*frozen, self->Elements(6));
  exchange.Start(frozen.get());
  bool stops = false;
  exchange.OnAllocate([&] { stops = self->rank() == 0; });
  for (int i = 0; i < 20; ++i) {
    if (!stops) frozen->Progress();
    CheckSetIsWell(other.get(), 1 + i * 400);
  }
  if (self->rank() == 0) Drive(frozen.get(), [&] { return stops; });
  CheckSetIsWell(other.get());
  Finish(frozen.get());
  exchange.ExpectNumbers();
}

// Two sets, in opposite order, with batches of one and of two phases.
void PhasesOfInterleavedSets(ContractRank* self) {
  auto first = self->NewTransport(), second = self->NewTransport();
  Transport* sets[] = {first.get(), second.get()};
  const int begin = self->rank() % 2;
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (int round = 0; round < 4; ++round) {
    for (int i : {begin, 1 - begin}) {
      exchanges.push_back(
          std::make_unique<Exchange>(*sets[i], self->Elements(1 + round)));
      exchanges.back()->Start(sets[i]);
      sets[i]->Progress();
    }
  }
  Drive({sets[0], sets[1]},
        [&] { return first->in_flight() == 0 && second->in_flight() == 0; });
  for (const auto& exchange : exchanges) exchange->ExpectNumbers();
}

// A batch of a later phase does not hold up a small one.
void SmallBatchPassesTheSecondPhase(ContractRank* self) {
  auto transport = self->NewTransport();
  Exchange large(*transport, self->Elements(40) * self->size());
  large.Start(transport.get());
  Drive(transport.get(), [&] { return large.allocated() > 0; });
  Exchange small(*transport, 64);
  small.Start(transport.get());
  Drive(transport.get(), [&] { return small.done(); });
  EXPECT_TRUE(self->size() == 1 || !large.done());
  Finish(transport.get());
  small.ExpectNumbers();
  large.ExpectNumbers();
}

// Many large ones at once want more staging memory than there is. The oldest
// has its own in each of its phases.
void ManyLargeExchangesUnderPressure(ContractRank* self) {
  auto transport = self->NewTransport(), other = self->NewTransport();
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (int i = 0; i < 12; ++i) {
    for (Transport* set : {transport.get(), other.get()}) {
      exchanges.push_back(
          std::make_unique<Exchange>(*set, self->Elements(5) + i));
      exchanges.back()->Start(set);
    }
  }
  Drive({transport.get(), other.get()},
        [&] { return transport->in_flight() == 0 && other->in_flight() == 0; });
  for (const auto& exchange : exchanges) exchange->ExpectNumbers();
}

void HundredsOfExchangesInFlight(ContractRank* self) {
  auto transport = self->NewTransport();
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (int i = 0; i < 300; ++i) {
    const int64_t count = i % 50 == 0 ? self->Elements(2) : i % 7;
    // No rank has the same in two of them.
    exchanges.push_back(
        std::make_unique<Exchange>(*transport, count, i * self->size()));
    exchanges.back()->Start(transport.get());
  }
  Finish(transport.get());
  for (const auto& exchange : exchanges) exchange->ExpectNumbers();
}

void DestroyedBetweenPhases(ContractRank* self) {
  auto other = self->NewTransport(), transport = self->NewTransport();
  auto exchange = std::make_unique<Exchange>(*transport, self->Elements(8));
  exchange->Start(transport.get());
  for (int i = 0; i < 2 * self->rank(); ++i) transport->Progress();
  transport.reset();
  exchange.reset();
  CheckSetIsWell(other.get(), self->Elements(3));
}

}  // namespace

std::vector<ContractCase> PhaseCases() {
  return {{"NoMemoryBetweenPhases", NoMemoryBetweenPhases},
          {"CancelledInEachPhase", CancelledInEachPhase},
          {"PoisonInThePhaseOfSizes", PoisonInThePhaseOfSizes},
          {"FrozenBetweenPhases", FrozenBetweenPhases},
          {"PhasesOfInterleavedSets", PhasesOfInterleavedSets},
          {"SmallBatchPassesTheSecondPhase", SmallBatchPassesTheSecondPhase},
          {"ManyLargeExchangesUnderPressure", ManyLargeExchangesUnderPressure},
          {"HundredsOfExchangesInFlight", HundredsOfExchangesInFlight},
          {"DestroyedBetweenPhases", DestroyedBetweenPhases}};
}

}  // namespace hvd
