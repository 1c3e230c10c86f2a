// SPDX-License-Identifier: Apache-2.0
// Contract cases: a large batch does not hold up a small one behind it, of any
// verb and with any share of the rows. Where memory is short all go on.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harness.h"
#include "sparse_call.h"
#include "transport_contract.h"

namespace hvd {
namespace {

std::vector<float> Filled(int64_t count, float value) {
  return std::vector<float>(static_cast<size_t>(count), value);
}

float ValueOf(int rank) { return static_cast<float>(rank + 1); }

float SumOfValues(int size) {
  return static_cast<float>(size * (size + 1) / 2);
}

// What one rank puts into a batch, ValueOf(rank) for each element, and what
// must come out there.
struct Small {
  std::string name;
  Batch batch;
  int64_t in_count = 0;
  std::vector<float> expected;
  int64_t row_count = 1;
};

// `counts` of each rank in turn, with its value.
std::vector<float> InRankOrder(const std::vector<int64_t>& counts) {
  std::vector<float> all;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    all.insert(all.end(), static_cast<size_t>(counts[rank]),
               ValueOf(static_cast<int>(rank)));
  }
  return all;
}

Small Allreduce(int64_t count, int size) {
  return {"allreduce", {}, count, Filled(count, SumOfValues(size))};
}

Small Broadcast(int64_t count, int root = 0) {
  Small small{"broadcast", {}, count, Filled(count, ValueOf(root))};
  small.batch.verb = Verb::kBroadcast;
  small.batch.root = root;
  return small;
}

Small Allgather(const std::vector<int64_t>& counts, int rank) {
  Small small{"allgather", {}, counts[rank], InRankOrder(counts)};
  small.batch.verb = Verb::kAllgather;
  small.batch.rows = {counts};
  return small;
}

// `rows_of(from, to)` is the same on every rank.
Small Alltoall(const std::function<int64_t(int from, int to)>& rows_of,
               int rank, int size) {
  Small small{"alltoall", {}, 0, {}};
  std::vector<int64_t> sent, received;
  for (int peer = 0; peer < size; ++peer) {
    sent.push_back(rows_of(rank, peer));
    received.push_back(rows_of(peer, rank));
    small.in_count += sent.back();
  }
  small.batch.verb = Verb::kAlltoall;
  small.batch.rows = {sent};
  small.expected = InRankOrder(received);
  return small;
}

Small Reducescatter(int64_t rows, int64_t row_count, int rank, int size) {
  const int64_t own = ScatteredRows(rows, rank, size).size() * row_count;
  Small small{"reducescatter",
              {},
              rows * row_count,
              Filled(own, SumOfValues(size)),
              row_count};
  small.batch.verb = Verb::kReducescatter;
  return small;
}

// It takes many passes of Progress.
Call Large(ContractRank* self) {
  const int64_t count = self->Elements(60);
  return Call(Filled(count, ValueOf(self->rank())), count);
}

void Finish(ContractRank* self, Transport* transport, Call* large) {
  EXPECT_FALSE(large->done());
  EXPECT_TRUE(transport->in_flight() >= 1);
  Drive(transport, [&] { return transport->in_flight() == 0; });
  EXPECT_TRUE(large->done() &&
              large->out() ==
                  Filled(self->Elements(60), SumOfValues(self->size())));
}

// One rank's call of it.
class SmallCall {
 public:
  SmallCall(Small small, int rank)
      : small_(std::move(small)),
        call_(Filled(small_.in_count, ValueOf(rank)),
              static_cast<int64_t>(small_.expected.size())) {}

  void Start(Transport* transport) {
    Batch batch = small_.batch;
    batch.segments = {{call_.in().data(), call_.out().data(), small_.in_count}};
    batch.segments[0].rows = small_.in_count / small_.row_count;
    batch.segments[0].row_count = small_.row_count;
    call_.Start(transport, std::move(batch));
  }
  const std::string& name() const { return small_.name; }
  bool done() const { return call_.done(); }
  void ExpectNumbers() {
    EXPECT_EQ(call_.status().message(), "");
    EXPECT_TRUE(call_.out() == small_.expected);
  }

 private:
  const Small small_;
  Call call_;
};

// All of them at once.
void CheckPass(ContractRank* self, const std::vector<Small>& batches) {
  auto transport = self->NewTransport();
  Call large = Large(self);
  large.Start(transport.get(), {});
  std::vector<std::unique_ptr<SmallCall>> calls;
  for (const Small& batch : batches) {
    calls.push_back(std::make_unique<SmallCall>(batch, self->rank()));
    calls.back()->Start(transport.get());
  }
  std::string waited;
  Drive(transport.get(), [&] {
    bool all_done = true;
    for (const auto& call : calls) {
      if (call->done()) continue;
      all_done = false;
      if (large.done()) waited = call->name();
    }
    return all_done;
  });
  EXPECT_EQ(waited, "");
  for (const auto& call : calls) call->ExpectNumbers();
  Finish(self, transport.get(), &large);
}

void SmallBatchPassesALargeOne(ContractRank* self) {
  const int rank = self->rank(), size = self->size();
  CheckPass(self, {Allreduce(1000, size), Broadcast(1000),
                   Allgather(std::vector<int64_t>(size, 300), rank),
                   Alltoall([](int from, int to) { return 10 + 3 * from + to; },
                            rank, size),
                   Reducescatter(1000, 1, rank, size)});
}

// Rank `one` has or gets all of the rows. Where peers' blocks are read in
// place, a rank that sends nothing of a chunk has no block of its own.
std::vector<Small> Borrowers(int64_t count, int one, int rank, int size) {
  std::vector<int64_t> of_one(size, 0);
  of_one[one] = count;
  return {Broadcast(count, one), Allgather(of_one, rank),
          Alltoall([&](int, int to) { return to == one ? count / size : 0; },
                   rank, size),
          Alltoall([&](int from, int to) { return from == to ? count : 0; },
                   rank, size),
          // The first rank's.
          Reducescatter(1, count, rank, size)};
}

void BatchThatBorrowsPassesALargeOne(ContractRank* self) {
  CheckPass(self, Borrowers(self->Elements(2), 0, self->rank(), self->size()));
}

// In two sets that the ranks start in opposite order, among batches that want
// more memory than there is.
void BatchesThatBorrowUnderPressure(ContractRank* self) {
  const int rank = self->rank(), size = self->size();
  auto first = self->NewTransport(), second = self->NewTransport();
  Transport* sets[] = {first.get(), second.get()};
  const int begin = rank % 2;
  std::vector<std::unique_ptr<SmallCall>> calls;
  for (int round = 0; round < 4; ++round) {
    const int64_t count = self->Elements(2 + round);
    for (int set : {begin, 1 - begin}) {
      std::vector<Small> batches =
          Borrowers(count, (round + set) % size, rank, size);
      batches.push_back(Allreduce(count, size));
      for (Small& batch : batches) {
        calls.push_back(std::make_unique<SmallCall>(std::move(batch), rank));
        calls.back()->Start(sets[set]);
      }
      sets[set]->Progress();
    }
  }
  Drive({sets[0], sets[1]},
        [&] { return first->in_flight() == 0 && second->in_flight() == 0; });
  for (const auto& call : calls) call->ExpectNumbers();
}

void SparseBatchPassesALargeOne(ContractRank* self) {
  auto transport = self->NewTransport();
  Call large = Large(self);
  large.Start(transport.get(), {});
  std::vector<std::unique_ptr<SparseCall>> calls;
  const auto start = [&](SparseAlgo algo, const SparseTable& table) {
    Batch batch;
    batch.sparse_algo = algo;
    calls.push_back(std::make_unique<SparseCall>(
        *transport, batch, std::vector<SparseTable>{table}));
    calls.back()->Start(transport.get());
  };
  start(SparseAlgo::kAllgather, {1000, 4, 30, 2, false});
  start(SparseAlgo::kReduceScatter, {1000, 4, 30, 2, false});
  // Some pieces, none of which the last rank has a row of.
  const int64_t rows = self->Elements(2) / 16;
  start(SparseAlgo::kAllgather, {2 * rows, 16, rows, 1, true});
  Drive(transport.get(), [&] {
    return std::all_of(calls.begin(), calls.end(),
                       [](const auto& call) { return call->done(); });
  });
  for (const auto& call : calls) call->ExpectNumbers();
  Finish(self, transport.get(), &large);
}

}  // namespace

std::vector<ContractCase> PassingCases() {
  return {{"SmallBatchPassesALargeOne", SmallBatchPassesALargeOne},
          {"BatchThatBorrowsPassesALargeOne", BatchThatBorrowsPassesALargeOne},
          {"BatchesThatBorrowUnderPressure", BatchesThatBorrowUnderPressure},
          {"SparseBatchPassesALargeOne", SparseBatchPassesALargeOne}};
}

}  // namespace hvd
