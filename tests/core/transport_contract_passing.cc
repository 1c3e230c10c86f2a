// SPDX-License-Identifier: Apache-2.0
// Contract cases: a large batch does not hold up a small one behind it, of any
// verb and with any share of the rows.
#include <functional>
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

Small Broadcast(int64_t count) {
  Small small{"broadcast", {}, count, Filled(count, ValueOf(0))};
  small.batch.verb = Verb::kBroadcast;
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

void CheckPasses(ContractRank* self, Transport* transport, const Small& small) {
  Call large = Large(self);
  Call call(Filled(small.in_count, ValueOf(self->rank())),
            static_cast<int64_t>(small.expected.size()));
  Batch batch = small.batch;
  batch.segments = {{call.in().data(), call.out().data(), small.in_count}};
  batch.segments[0].rows = small.in_count / small.row_count;
  batch.segments[0].row_count = small.row_count;
  large.Start(transport, {});
  call.Start(transport, std::move(batch));
  Drive(transport, [&] { return call.done(); });
  EXPECT_EQ(large.done() ? small.name + " has waited" : "", "");
  EXPECT_EQ(call.status().message(), "");
  EXPECT_TRUE(call.out() == small.expected);
  Finish(self, transport, &large);
}

void CheckPassesSparse(ContractRank* self, Transport* transport,
                       SparseAlgo algo, const SparseTable& table) {
  Call large = Large(self);
  Batch batch;
  batch.sparse_algo = algo;
  SparseCall call(*transport, batch, {table});
  large.Start(transport, {});
  call.Start(transport);
  Drive(transport, [&] { return call.done(); });
  call.ExpectNumbers();
  Finish(self, transport, &large);
}

void SmallBatchPassesALargeOne(ContractRank* self) {
  const int rank = self->rank(), size = self->size();
  auto transport = self->NewTransport();
  const auto passes = [&](const Small& small) {
    CheckPasses(self, transport.get(), small);
  };
  passes(Allreduce(1000, size));
  passes(Broadcast(1000));
  passes(Allgather(std::vector<int64_t>(size, 300), rank));
  passes(Alltoall([](int from, int to) { return 10 + 3 * from + to; }, rank,
                  size));
  passes(Reducescatter(1000, 1, rank, size));
}

// Where peers' blocks are read in place, a rank that sends nothing of a chunk
// has no block of its own.
void BatchThatBorrowsPassesALargeOne(ContractRank* self) {
  const int rank = self->rank(), size = self->size();
  const int64_t count = self->Elements(3);
  auto transport = self->NewTransport();
  const auto passes = [&](const Small& small) {
    CheckPasses(self, transport.get(), small);
  };
  passes(Broadcast(count));
  std::vector<int64_t> of_the_first(size, 0);
  of_the_first[0] = count;
  passes(Allgather(of_the_first, rank));
  passes(Alltoall([&](int, int to) { return to == 0 ? count / size : 0; }, rank,
                  size));
  passes(Alltoall([&](int from, int to) { return from == to ? count : 0; },
                  rank, size));
  passes(Reducescatter(1, count, rank, size));
}

void SparseBatchPassesALargeOne(ContractRank* self) {
  auto transport = self->NewTransport();
  for (SparseAlgo algo : {SparseAlgo::kAllgather, SparseAlgo::kReduceScatter}) {
    CheckPassesSparse(self, transport.get(), algo, {1000, 4, 30, 2, false});
  }
  // Some pieces, none of which the last rank has a row of.
  const int64_t rows = self->Elements(3) / 16;
  CheckPassesSparse(self, transport.get(), SparseAlgo::kAllgather,
                    {2 * rows, 16, rows, 1, true});
}

}  // namespace

std::vector<ContractCase> PassingCases() {
  return {{"SmallBatchPassesALargeOne", SmallBatchPassesALargeOne},
          {"BatchThatBorrowsPassesALargeOne", BatchThatBorrowsPassesALargeOne},
          {"SparseBatchPassesALargeOne", SparseBatchPassesALargeOne}};
}

}  // namespace hvd
