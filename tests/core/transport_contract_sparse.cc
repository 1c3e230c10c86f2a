// SPDX-License-Identifier: Apache-2.0
// Contract cases: a sparse allreduce gives the right rows, to the bit.
#include <vector>

#include "harness.h"
#include "sparse_call.h"
#include "transport_contract.h"
#include "typed_values.h"

namespace hvd {
namespace {

constexpr SparseAlgo kAlgos[] = {SparseAlgo::kAuto, SparseAlgo::kAllgather,
                                 SparseAlgo::kReduceScatter};

void Run(Transport* transport, const Batch& batch,
         const std::vector<SparseTable>& tables, bool knows_rows = true,
         const std::vector<int>& absent = {}) {
  SparseCall call(*transport, batch, tables, knows_rows, absent);
  call.Start(transport);
  if (!Drive(transport, [&] { return call.done(); })) return;
  call.ExpectNumbers();
}

Batch BatchOf(DataType dtype, SparseAlgo algo = SparseAlgo::kAuto) {
  Batch batch;
  batch.dtype = batch.wire_dtype = dtype;
  batch.sparse_algo = algo;
  return batch;
}

// Tables that travel together: few rows of many, most rows of some, all rows,
// rows of unknown tables, rows without elements, and a rank without rows.
std::vector<SparseTable> Mixed() {
  return {{1000, 16, 900, 9, false}, {60, 1, 60, 2, false},
          {5, 130, 5, 1, false},     {-1, 3, 300, 4, true},
          {100, 0, 100, 3, false},   {int64_t{1} << 40, 2, 50, 3, false},
          {7, 21, 7, 2, true},       {3, 4, 0, 1, false}};
}

void SparseRowsOfManyTables(ContractRank* self) {
  auto transport = self->NewTransport();
  for (SparseAlgo algo : kAlgos) {
    for (DataType dtype :
         {DataType::kFloat32, DataType::kFloat16, DataType::kInt8}) {
      for (bool knows_rows : {true, false}) {
        Run(transport.get(), BatchOf(dtype, algo), Mixed(), knows_rows);
      }
    }
  }
}

void SparseIdsOfBothTypes(ContractRank* self) {
  auto transport = self->NewTransport();
  for (DataType id_dtype : {DataType::kInt32, DataType::kInt64}) {
    for (int64_t table_rows : {int64_t{-1}, int64_t{500}, int64_t{1} << 31}) {
      Batch batch = BatchOf(DataType::kFloat32);
      batch.id_dtype = id_dtype;
      Run(transport.get(), batch, {{table_rows, 4, 400, 3, false}});
    }
  }
}

// One table at a time, so that each way has a batch of its own.
void SparseTablesAlone(ContractRank* self) {
  auto transport = self->NewTransport();
  for (SparseAlgo algo : kAlgos) {
    for (const SparseTable& table : Mixed()) {
      Run(transport.get(), BatchOf(DataType::kFloat32, algo), {table});
    }
  }
}

void SparseRowsOfSeveralChunks(ContractRank* self) {
  auto transport = self->NewTransport();
  for (SparseAlgo algo : kAlgos) {
    const Batch batch = BatchOf(DataType::kFloat32, algo);
    Run(transport.get(), batch,
        {{40000, 16, self->Elements(6) / 16, 2, false}, {9, 2, 9, 2, false}});
    // A row is longer than a chunk.
    Run(transport.get(), batch,
        {{20, self->Elements(2) + 5, 6, 2, false}, {9, 2, 9, 2, false}});
  }
}

void SparseAveragesScalesAndCasts(ContractRank* self) {
  auto transport = self->NewTransport();
  const std::vector<SparseTable> tables = {{300, 5, 250, 2, true},
                                           {6, 7, 6, 1, false}};
  for (SparseAlgo algo : kAlgos) {
    for (DataType dtype : kContractTypes) {
      Batch batch = BatchOf(dtype, algo);
      batch.reduce_op = ReduceOp::kAverage;
      // Powers of two: float32 is divided without rounding.
      batch.divisor = 4;
      batch.prescale = 2.0;
      batch.postscale = 0.5;
      Run(transport.get(), batch, tables);
    }
    for (DataType wire : {DataType::kFloat16, DataType::kBfloat16}) {
      Batch batch = BatchOf(DataType::kFloat64, algo);
      batch.wire_dtype = wire;
      Run(transport.get(), batch, tables);
    }
  }
}

void SparseRowsOfNobody(ContractRank* self) {
  auto transport = self->NewTransport();
  for (SparseAlgo algo : kAlgos) {
    for (bool knows_rows : {true, false}) {
      Run(transport.get(), BatchOf(DataType::kFloat32, algo),
          {{100, 16, 0, 1, false}, {-1, 16, 0, 1, false}}, knows_rows);
    }
  }
}

void JoinedRanksHaveNoSparseRows(ContractRank* self) {
  auto transport = self->NewTransport();
  const int last = self->size() - 1;
  std::vector<std::vector<int>> absences = {{0}, {last}};
  if (last > 1) absences.push_back({0, last});
  for (const std::vector<int>& absent : absences) {
    if (self->size() == 1) break;
    for (SparseAlgo algo : kAlgos) {
      Batch batch = BatchOf(DataType::kFloat32, algo);
      batch.reduce_op = ReduceOp::kAverage;
      batch.divisor = 2;
      Run(transport.get(), batch, Mixed(), true, absent);
    }
  }
}

void SparseRowsThatMakeNoSense(ContractRank* self) {
  auto transport = self->NewTransport();
  const auto refused = [&](const std::function<void(Batch*)>& spoil) {
    SparseCall call(*transport, BatchOf(DataType::kFloat32),
                    {{100, 3, 100, 2, false}});
    spoil(&call.batch());
    call.Start(transport.get());
    Drive(transport.get(), [&] { return call.done(); });
    EXPECT_FALSE(call.status().ok());
    EXPECT_EQ(call.allocated(), 0);
    CheckSetIsWell(transport.get());
  };
  refused([](Batch* batch) { batch->reduce_op = ReduceOp::kMin; });
  refused([](Batch* batch) { batch->segments[0].table_rows = 1; });
  refused([](Batch* batch) { batch->dtype = DataType::kBool; });
  // On one rank. All hear of it with the ids.
  std::vector<int64_t> ids(100, 99);
  refused([&](Batch* batch) {
    if (self->rank() == 0) batch->segments[0].ids = ids.data();
  });
}

}  // namespace

std::vector<ContractCase> SparseCases() {
  return {{"SparseRowsOfManyTables", SparseRowsOfManyTables},
          {"SparseIdsOfBothTypes", SparseIdsOfBothTypes},
          {"SparseTablesAlone", SparseTablesAlone},
          {"SparseRowsOfSeveralChunks", SparseRowsOfSeveralChunks},
          {"SparseAveragesScalesAndCasts", SparseAveragesScalesAndCasts},
          {"SparseRowsOfNobody", SparseRowsOfNobody},
          {"JoinedRanksHaveNoSparseRows", JoinedRanksHaveNoSparseRows},
          {"SparseRowsThatMakeNoSense", SparseRowsThatMakeNoSense}};
}

}  // namespace hvd
