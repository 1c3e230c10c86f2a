// SPDX-License-Identifier: Apache-2.0
// Contract cases: verbs that divide tensors at rows give the right numbers.
#include <cstring>
#include <utility>

#include "harness.h"
#include "transport_contract.h"
#include "typed_values.h"

namespace hvd {
namespace {

constexpr int kSegments = 4;

// Elements of a row. One has none, one is odd, one is large.
int64_t RowCountOf(int segment) {
  constexpr int64_t kCounts[kSegments] = {1, 0, 7, 130};
  return kCounts[segment];
}

// Rows that go from one rank to another: none, few or many.
int64_t RowsSent(int from, int to, int segment, int64_t unit) {
  return (from * 3 + to * 5 + segment) % 4 * unit;
}
// Rows that a rank puts into an allgather.
int64_t RowsOf(int rank, int segment, int64_t unit) {
  return (rank * 3 + segment) % 5 * unit;
}

// Element `i` of the rows that go from one rank to another. Exact in every
// dtype.
double ValueOf(int from, int to, int segment, int64_t i) {
  return static_cast<double>((from * 7 + to * 3 + segment + i) % 100);
}

int64_t Sum(const std::vector<int64_t>& counts) {
  int64_t sum = 0;
  for (int64_t count : counts) sum += count;
  return sum;
}

// The memory of a batch whose outputs come late.
struct LateBatch {
  Batch batch;
  std::vector<std::vector<char>> in, out;
  RankCounts received;
  int allocated = 0;

  LateBatch(Verb verb, DataType dtype) {
    batch.verb = verb;
    batch.dtype = dtype;
    batch.allocate = [this](const RankCounts& rows,
                            std::vector<void*>* outputs) {
      ++allocated;
      received = rows;
      for (size_t i = 0; i < rows.size(); ++i) {
        const int64_t bytes = Sum(rows[i]) * batch.segments[i].row_count *
                              static_cast<int64_t>(SizeOf(batch.dtype));
        out.emplace_back(static_cast<size_t>(bytes));
      }
      for (std::vector<char>& memory : out) outputs->push_back(memory.data());
      return Status::Ok();
    };
  }

  void AddSegment(int64_t rows, int64_t row_count) {
    Segment segment;
    segment.rows = rows;
    segment.row_count = row_count;
    segment.count = rows * row_count;
    in.emplace_back(static_cast<size_t>(segment.count) * SizeOf(batch.dtype));
    batch.segments.push_back(segment);
  }

  Status Run(Transport* transport) {
    for (size_t i = 0; i < in.size(); ++i) batch.segments[i].in = in[i].data();
    Status result = Internal("not done");
    bool done = false;
    Batch copy = batch;
    transport->Start(std::move(copy), [&](const Status& status) {
      result = status;
      done = true;
    });
    Drive(transport, [&] { return done; });
    return result;
  }
};

void CheckAlltoall(Transport* transport, DataType dtype, int64_t unit) {
  const int rank = transport->rank(), size = transport->size();
  LateBatch late(Verb::kAlltoall, dtype);
  for (int s = 0; s < kSegments; ++s) {
    std::vector<int64_t>& rows = late.batch.rows.emplace_back();
    for (int to = 0; to < size; ++to) {
      rows.push_back(RowsSent(rank, to, s, unit));
    }
    late.AddSegment(Sum(rows), RowCountOf(s));
    int64_t at = 0;
    for (int to = 0; to < size; ++to) {
      for (int64_t i = 0; i < rows[static_cast<size_t>(to)] * RowCountOf(s);
           ++i) {
        PutValue(dtype, late.in[s].data(), at++, ValueOf(rank, to, s, i));
      }
    }
  }
  EXPECT_EQ(late.Run(transport).message(), "");
  ASSERT_EQ(late.allocated, 1);
  int64_t wrong = 0;
  for (int s = 0; s < kSegments; ++s) {
    int64_t at = 0;
    for (int from = 0; from < size; ++from) {
      const int64_t rows = RowsSent(from, rank, s, unit);
      EXPECT_EQ(late.received[s][from], rows);
      for (int64_t i = 0; i < rows * RowCountOf(s); ++i) {
        wrong += GetValue(dtype, late.out[s].data(), at++) !=
                 ValueOf(from, rank, s, i);
      }
    }
  }
  EXPECT_EQ(wrong, 0);
}

void AlltoallOfAnySplits(ContractRank* self) {
  auto transport = self->NewTransport();
  for (DataType dtype :
       {DataType::kUint8, DataType::kFloat16, DataType::kInt64}) {
    // Where chunks are small, the last unit's rows take several.
    for (int64_t unit : {0, 1, 30, 90}) {
      CheckAlltoall(transport.get(), dtype, unit);
    }
  }
}

// As where the log has no sizes.
void CheckGatherOfUnknownRows(Transport* transport, int64_t unit) {
  const int rank = transport->rank(), size = transport->size();
  const DataType dtype = DataType::kInt32;
  LateBatch late(Verb::kAllgather, dtype);
  for (int s = 0; s < kSegments; ++s) {
    late.AddSegment(RowsOf(rank, s, unit), RowCountOf(s));
    for (int64_t i = 0; i < late.batch.segments[s].count; ++i) {
      PutValue(dtype, late.in[s].data(), i, ValueOf(rank, 0, s, i));
    }
  }
  EXPECT_EQ(late.Run(transport).message(), "");
  ASSERT_EQ(late.allocated, 1);
  int64_t wrong = 0;
  for (int s = 0; s < kSegments; ++s) {
    int64_t at = 0;
    for (int from = 0; from < size; ++from) {
      const int64_t rows = RowsOf(from, s, unit);
      EXPECT_EQ(late.received[s][from], rows);
      for (int64_t i = 0; i < rows * RowCountOf(s); ++i) {
        wrong +=
            GetValue(dtype, late.out[s].data(), at++) != ValueOf(from, 0, s, i);
      }
    }
  }
  EXPECT_EQ(wrong, 0);
}

void AllgatherOfUnknownRows(ContractRank* self) {
  auto transport = self->NewTransport();
  for (int64_t unit : {0, 1, 30, 90}) {
    CheckGatherOfUnknownRows(transport.get(), unit);
  }
}

// What an allreduce gives of the same tensors, in the rows of this rank: the
// same bits.
void CheckReducescatter(Transport* transport, Batch head, int64_t rows) {
  const int rank = transport->rank(), size = transport->size();
  const auto bytes = static_cast<int64_t>(SizeOf(head.dtype));
  std::vector<std::vector<char>> in, all, own;
  Batch reduce = head, scatter = head;
  reduce.verb = Verb::kAllreduce;
  scatter.verb = Verb::kReducescatter;
  for (int s = 0; s < kSegments; ++s) {
    Segment segment;
    segment.rows = rows + s;
    segment.row_count = RowCountOf(s);
    segment.count = segment.rows * segment.row_count;
    in.emplace_back(static_cast<size_t>(segment.count * bytes));
    for (int64_t i = 0; i < segment.count; ++i) {
      PutValue(head.dtype, in[s].data(), i,
               SampleValue(head.dtype, head.reduce_op, rank, i + s) * 1.1);
    }
    const RowRange mine = ScatteredRows(segment.rows, rank, size);
    all.emplace_back(in[s].size());
    own.emplace_back(
        static_cast<size_t>(mine.size() * segment.row_count * bytes));
    reduce.segments.push_back(segment);
    scatter.segments.push_back(segment);
  }
  for (int s = 0; s < kSegments; ++s) {
    reduce.segments[s].in = scatter.segments[s].in = in[s].data();
    reduce.segments[s].out = all[s].data();
    scatter.segments[s].out = own[s].data();
  }
  int done = 0;
  const auto count = [&](const Status& status) {
    EXPECT_EQ(status.message(), "");
    ++done;
  };
  transport->Start(reduce, count);
  transport->Start(scatter, count);
  if (!Drive(transport, [&] { return done == 2; })) return;
  for (int s = 0; s < kSegments; ++s) {
    const int64_t row_bytes = RowCountOf(s) * bytes;
    const RowRange mine = ScatteredRows(rows + s, rank, size);
    EXPECT_TRUE(own[s].empty() ||
                std::memcmp(own[s].data(),
                            all[s].data() + mine.begin * row_bytes,
                            own[s].size()) == 0);
  }
}

void ReducescatterHasTheBitsOfAllreduce(ContractRank* self) {
  auto transport = self->NewTransport();
  // An integer whose averages are added in a wider type, a half, and a whole.
  // The arithmetic is allreduce's, which has cases of every dtype.
  for (DataType dtype :
       {DataType::kInt8, DataType::kBfloat16, DataType::kFloat32}) {
    for (ReduceOp op : kReduceOps) {
      Batch head;
      head.dtype = head.wire_dtype = dtype;
      head.reduce_op = op;
      head.prescale = 0.5;
      head.postscale = 3.0;
      CheckReducescatter(transport.get(), head, 60);
    }
  }
}

void ReducescatterOfAnyRows(ContractRank* self) {
  auto transport = self->NewTransport();
  Batch head;
  for (int64_t rows : {0, 1, 2, 3, 9, 300}) {
    CheckReducescatter(transport.get(), head, rows);
  }
  head.wire_dtype = DataType::kFloat16;
  head.reduce_op = ReduceOp::kAverage;
  CheckReducescatter(transport.get(), head, 100);
}

// More ranks than fit into a chunk's shares, and chunks that only some pairs
// have.
void OneRankSendsEverything(ContractRank* self) {
  auto transport = self->NewTransport();
  const int rank = self->rank(), size = self->size();
  const int64_t many = self->Elements(9) + 5;
  LateBatch late(Verb::kAlltoall, DataType::kFloat32);
  std::vector<int64_t> rows(static_cast<size_t>(size), 0);
  if (rank == 0) rows.back() = many;
  late.AddSegment(Sum(rows), 1);
  late.batch.rows.push_back(rows);
  for (int64_t i = 0; i < Sum(rows); ++i) {
    PutValue(DataType::kFloat32, late.in[0].data(), i,
             static_cast<double>(i % 1000));
  }
  EXPECT_EQ(late.Run(transport.get()).message(), "");
  const int64_t wanted = rank == size - 1 ? many : 0;
  EXPECT_EQ(late.out[0].size(), static_cast<size_t>(wanted) * sizeof(float));
  int64_t wrong = 0;
  for (int64_t i = 0; i < wanted; ++i) {
    wrong += GetValue(DataType::kFloat32, late.out[0].data(), i) !=
             static_cast<double>(i % 1000);
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace

std::vector<ContractCase> RowCases() {
  return {{"AlltoallOfAnySplits", AlltoallOfAnySplits},
          {"AllgatherOfUnknownRows", AllgatherOfUnknownRows},
          {"ReducescatterHasTheBitsOfAllreduce",
           ReducescatterHasTheBitsOfAllreduce},
          {"ReducescatterOfAnyRows", ReducescatterOfAnyRows},
          {"OneRankSendsEverything", OneRankSendsEverything}};
}

}  // namespace hvd
