// SPDX-License-Identifier: Apache-2.0
// Contract cases: every verb gives the right numbers.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "expected_reductions.h"
#include "harness.h"
#include "transport_contract.h"
#include "typed_values.h"

namespace hvd {
namespace {

// Segments of these sizes side by side: none, one, odd ones, one of several
// chunks when chunks are small.
const std::vector<int64_t> kCounts = {0, 1, 17, 3000, 0, 255};

// A batch whose segments hold SampleValue, with memory of its own.
struct Sample {
  Sample(DataType dtype, ReduceOp op, int rank, bool in_place) {
    int64_t number = 0;
    for (int64_t count : kCounts) {
      const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
      in.emplace_back(bytes);
      for (int64_t i = 0; i < count; ++i) {
        PutValue(dtype, in.back().data(), i,
                 SampleValue(dtype, op, rank, number++));
      }
      out.emplace_back(in_place ? 0 : bytes);
    }
    for (size_t i = 0; i < kCounts.size(); ++i) {
      void* const to = in_place ? in[i].data() : out[i].data();
      batch.segments.push_back({in[i].data(), to, kCounts[i]});
    }
    batch.dtype = batch.wire_dtype = dtype;
    batch.reduce_op = op;
  }

  Status Run(Transport* transport) {
    Status result = Internal("not done");
    bool done = false;
    transport->Start(batch, [&](const Status& status) {
      result = status;
      done = true;
    });
    Drive(transport, [&] { return done; });
    return result;
  }

  // The results of all segments, one after another.
  std::vector<double> Results() const {
    std::vector<double> values;
    for (const Segment& segment : batch.segments) {
      for (int64_t i = 0; i < segment.count; ++i) {
        values.push_back(GetValue(batch.dtype, segment.out, i));
      }
    }
    return values;
  }

  std::vector<std::vector<char>> in, out;
  Batch batch;
};

// How far off element i may be beyond a relative error of its own. In two
// levels the hosts' sums are rounded as well. They may be larger than their
// sum.
double PartialsRounding(const ContractRank& self, const Batch& batch,
                        int64_t i) {
  const std::vector<int> host_of = self.host_of();
  const bool adds = batch.reduce_op == ReduceOp::kSum ||
                    batch.reduce_op == ReduceOp::kAverage;
  if (!adds || *std::max_element(host_of.begin(), host_of.end()) == 0) return 0;
  double magnitude = 0;
  for (size_t rank = 0; rank < host_of.size(); ++rank) {
    magnitude += std::abs(
        SampleValue(batch.dtype, batch.reduce_op, static_cast<int>(rank), i));
  }
  if (batch.reduce_op == ReduceOp::kAverage) {
    magnitude /= static_cast<double>(host_of.size());
  }
  return magnitude * std::abs(batch.prescale * batch.postscale) *
         Epsilon(batch.wire_dtype);
}

void CheckAllreduce(const ContractRank& self, Transport* transport,
                    DataType dtype, DataType wire_dtype, ReduceOp op,
                    double prescale, double postscale, bool in_place) {
  Sample sample(dtype, op, transport->rank(), in_place);
  sample.batch.wire_dtype = wire_dtype;
  sample.batch.prescale = prescale;
  sample.batch.postscale = postscale;
  EXPECT_EQ(sample.Run(transport).message(), "");
  const std::vector<double> results = sample.Results();
  const double epsilon = std::max(Epsilon(dtype), Epsilon(wire_dtype));
  const auto expected = ExpectedReductions(
      {dtype, wire_dtype, op, transport->size(), prescale, postscale},
      static_cast<int64_t>(results.size()));
  double worst = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    const double error = std::abs(results[i] - (*expected)[i]);
    double allowed = std::abs((*expected)[i]) * epsilon;
    if (!(error <= allowed)) {
      allowed += PartialsRounding(self, sample.batch, static_cast<int64_t>(i));
    }
    worst = std::max(worst, error - allowed);
    if (!(error <= allowed)) worst = HUGE_VAL;
  }
  if (!EXPECT_EQ(worst, 0)) {
    std::printf("  %s as %s, %s, %g, %g\n", Name(dtype), Name(wire_dtype),
                Name(op), prescale, postscale);
  }
}

void AllreduceOfEveryDtypeAndOp(ContractRank* self) {
  auto transport = self->NewTransport();
  for (DataType dtype : kContractTypes) {
    for (ReduceOp op : kReduceOps) {
      CheckAllreduce(*self, transport.get(), dtype, dtype, op, 1.0, 1.0, false);
      CheckAllreduce(*self, transport.get(), dtype, dtype, op, 0.5, 3.0, true);
      CheckAllreduce(*self, transport.get(), dtype, dtype, op, 2.0, 0.25,
                     false);
    }
  }
}

void AllreduceCompressed(ContractRank* self) {
  auto transport = self->NewTransport();
  for (DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
    for (DataType wire : {DataType::kFloat16, DataType::kBfloat16}) {
      for (ReduceOp op : kReduceOps) {
        CheckAllreduce(*self, transport.get(), dtype, wire, op, 1.0, 1.0, true);
        CheckAllreduce(*self, transport.get(), dtype, wire, op, 0.5, 3.0,
                       false);
      }
    }
    if (kElementsAreSlow) break;
  }
  CheckAllreduce(*self, transport.get(), DataType::kFloat64, DataType::kFloat32,
                 ReduceOp::kSum, 1.0, 1.0, false);
}

// Values of which every order of adding gives other bits.
float Rough(int rank, int64_t i) {
  const int64_t mix = (rank + 1) * 7919 + i * 104729;
  return std::ldexp(static_cast<float>(mix % 1000003) - 5e5f,
                    static_cast<int>(mix % 23) - 20);
}

// In rank order on each host, then in the order of the hosts, which are
// numbered by their first rank.
float RoughSum(const std::vector<int>& host_of, int64_t i) {
  std::vector<float> sums;
  for (size_t rank = 0; rank < host_of.size(); ++rank) {
    const float value = Rough(static_cast<int>(rank), i);
    if (static_cast<size_t>(host_of[rank]) == sums.size()) {
      sums.push_back(value);
    } else {
      sums[host_of[rank]] += value;
    }
  }
  return std::accumulate(sums.begin() + 1, sums.end(), sums[0]);
}

// Every `stride`-th element is rough, the others are 0.
Call RoughCall(Transport* transport, int64_t count, int64_t stride = 1) {
  std::vector<float> in(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; i += stride) {
    in[i] = Rough(transport->rank(), i);
  }
  return Call(std::move(in), count);
}

void StartAverage(Transport* transport, Call* call) {
  Batch batch;
  batch.reduce_op = ReduceOp::kAverage;
  call->Start(transport, batch);
}

// Every `stride`-th element is looked at.
void CheckAverage(ContractRank* self, Call* call, int64_t stride = 1) {
  EXPECT_EQ(call->status().message(), "");
  const std::vector<int> host_of = self->host_of();
  const auto size = static_cast<float>(self->size());
  const auto count = static_cast<int64_t>(call->out().size());
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; i += stride) {
    wrong += call->out()[i] != RoughSum(host_of, i) / size;
  }
  EXPECT_EQ(wrong, 0);
}

// The same bits whatever the number of elements that travel together, and thus
// whatever the chunk, its owner and the algorithm.
void SumsAreInFixedOrder(ContractRank* self) {
  auto transport = self->NewTransport();
  for (int64_t count :
       {int64_t{1}, int64_t{100}, int64_t{2000}, self->Elements(5) + 37}) {
    Call call = RoughCall(transport.get(), count);
    StartAverage(transport.get(), &call);
    if (!Drive(transport.get(), [&] { return call.done(); })) return;
    CheckAverage(self, &call);
  }
}

void BroadcastFromEveryRoot(ContractRank* self) {
  auto transport = self->NewTransport();
  for (int root = 0; root < transport->size(); ++root) {
    for (DataType dtype :
         {DataType::kUint8, DataType::kFloat64, DataType::kBool}) {
      for (bool in_place : {false, true}) {
        Sample sample(dtype, ReduceOp::kSum, transport->rank(), in_place);
        sample.batch.verb = Verb::kBroadcast;
        sample.batch.wire_dtype = DataType::kFloat16;  // of allreduces only
        sample.batch.root = root;
        EXPECT_EQ(sample.Run(transport.get()).message(), "");
        const Sample expected(dtype, ReduceOp::kSum, root, true);
        EXPECT_TRUE(sample.Results() == expected.Results());
      }
    }
  }
}

// Rank r gives (r * 3 + segment) % 4 times `unit` elements: some give none.
int64_t GatherCount(int rank, int segment, int64_t unit) {
  return (rank * 3 + segment) % 4 * unit;
}

double GatherValue(int rank, int segment, int64_t i) {
  return static_cast<double>((rank * 31 + segment * 7 + i) % 100);
}

void CheckAllgather(Transport* transport, DataType dtype, int64_t unit) {
  constexpr int kSegments = 3;
  std::vector<std::vector<char>> in(kSegments), out(kSegments);
  Batch batch;
  batch.verb = Verb::kAllgather;
  batch.dtype = dtype;
  batch.wire_dtype = DataType::kFloat64;  // of allreduces only
  for (int s = 0; s < kSegments; ++s) {
    std::vector<int64_t> counts;
    for (int rank = 0; rank < transport->size(); ++rank) {
      counts.push_back(GatherCount(rank, s, unit));
    }
    const int64_t mine = counts[transport->rank()];
    in[s].resize(static_cast<size_t>(mine) * SizeOf(dtype));
    for (int64_t i = 0; i < mine; ++i) {
      PutValue(dtype, in[s].data(), i, GatherValue(transport->rank(), s, i));
    }
    const int64_t total =
        std::accumulate(counts.begin(), counts.end(), int64_t{0});
    out[s].resize(static_cast<size_t>(total) * SizeOf(dtype));
    batch.segments.push_back({in[s].data(), out[s].data(), mine});
    batch.rows.push_back(std::move(counts));
  }
  Status result = Internal("not done");
  bool done = false;
  transport->Start(batch, [&](const Status& status) {
    result = status;
    done = true;
  });
  if (!Drive(transport, [&] { return done; })) return;
  EXPECT_EQ(result.message(), "");
  int64_t wrong = 0;
  for (int s = 0; s < kSegments; ++s) {
    int64_t at = 0;
    for (int rank = 0; rank < transport->size(); ++rank) {
      for (int64_t i = 0; i < batch.rows[s][rank]; ++i, ++at) {
        wrong += GetValue(dtype, out[s].data(), at) != GatherValue(rank, s, i);
      }
    }
  }
  EXPECT_EQ(wrong, 0);
}

void AllgatherOfDifferentCounts(ContractRank* self) {
  auto transport = self->NewTransport();
  for (DataType dtype :
       {DataType::kUint8, DataType::kFloat16, DataType::kInt64}) {
    // Where chunks are small, the last unit's rows take several.
    for (int64_t unit : {0, 1, 50, 2000}) {
      CheckAllgather(transport.get(), dtype, unit);
    }
  }
}

// Batches in flight together have each the chunks that held when it began, up
// to the longest that the transport says it has memory for.
void ChunksMayChangeBetweenBatches(ContractRank* self) {
  auto transport = self->NewTransport();
  const ChunkLimits limits = transport->chunk_limits();
  EXPECT_EQ(limits.bytes, self->chunk_bytes());
  EXPECT_TRUE(limits.most_bytes >= limits.bytes);
  EXPECT_FALSE(limits.knob.empty());
  const int64_t most_bytes = std::min<int64_t>(limits.most_bytes, 1 << 20);
  constexpr int64_t kStride = 61;
  std::vector<Call> calls;
  std::vector<int64_t> chunks_bytes = {limits.bytes, most_bytes, 1024,
                                       most_bytes, 3000};
  for (int64_t chunk_bytes : chunks_bytes) {
    calls.push_back(RoughCall(
        transport.get(), self->Elements(3) + 2 * chunk_bytes / 4, kStride));
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    transport->SetChunkBytes(chunks_bytes[i]);
    EXPECT_EQ(transport->chunk_limits().bytes, chunks_bytes[i]);
    StartAverage(transport.get(), &calls[i]);
  }
  Drive(transport.get(), [&] { return transport->in_flight() == 0; });
  for (Call& call : calls) CheckAverage(self, &call, kStride);
  CheckAllgather(transport.get(), DataType::kFloat32, 9000);
}

// Outputs beyond any core's cache, which begin and end within lines of it and
// between which nothing may be written.
void OutputsBeyondTheCache(ContractRank* self) {
  auto transport = self->NewTransport();
  if (self->size() > 2) return;  // the same for all, and long
  const std::vector<int64_t> counts = {7, (9 << 20) / 4, 133};
  constexpr float kUntouched = -1.0F;
  // The values repeat, so that a block of them is compared at once.
  constexpr int64_t kBlock = 1000;
  const auto block_of = [](int factor, int more) {
    std::vector<float> block(kBlock);
    for (int64_t i = 0; i < kBlock; ++i) {
      block[i] = static_cast<float>(factor * i + more);
    }
    return block;
  };
  const std::vector<float> own = block_of(1, transport->rank());
  for (Verb verb : {Verb::kAllreduce, Verb::kBroadcast}) {
    std::vector<std::vector<float>> in, out;
    Batch batch;
    batch.verb = verb;
    batch.root = transport->size() - 1;
    for (int64_t count : counts) {
      in.emplace_back(count);
      for (int64_t i = 0; i < count; i += kBlock) {
        std::copy_n(own.begin(), std::min(kBlock, count - i),
                    in.back().begin() + i);
      }
      out.emplace_back(count + 2, kUntouched);
      batch.segments.push_back(
          {in.back().data(), out.back().data() + 1, count});
    }
    Status result = Internal("not done");
    bool done = false;
    transport->Start(batch, [&](const Status& status) {
      result = status;
      done = true;
    });
    if (!Drive(transport.get(), [&] { return done; })) return;
    EXPECT_EQ(result.message(), "");
    const int ranks = transport->size();
    const std::vector<float> expected =
        verb == Verb::kAllreduce ? block_of(ranks, ranks * (ranks - 1) / 2)
                                 : block_of(1, batch.root);
    int64_t wrong = 0;
    for (const std::vector<float>& values : out) {
      const auto count = static_cast<int64_t>(values.size()) - 2;
      for (int64_t i = 0; i < count; i += kBlock) {
        const auto bytes =
            static_cast<size_t>(std::min(kBlock, count - i)) * sizeof(float);
        wrong += std::memcmp(&values[i + 1], expected.data(), bytes) != 0;
      }
      wrong += values.front() != kUntouched || values.back() != kUntouched;
    }
    EXPECT_EQ(wrong, 0);
  }
}

// Batches without a single element still finish, and with the others'.
void NothingToMove(ContractRank* self) {
  auto transport = self->NewTransport();
  for (Verb verb : {Verb::kAllreduce, Verb::kBroadcast, Verb::kAllgather}) {
    for (int segments : {0, 2}) {
      Batch batch;
      batch.verb = verb;
      batch.segments.resize(segments);
      if (verb == Verb::kAllgather) {
        batch.rows.assign(segments, std::vector<int64_t>(self->size(), 0));
      }
      bool done = false;
      transport->Start(batch, [&](const Status& status) {
        EXPECT_EQ(status.message(), "");
        done = true;
      });
      Drive(transport.get(), [&] { return done; });
    }
  }
  CheckSetIsWell(transport.get());
}

}  // namespace

std::vector<ContractCase> NumberCases() {
  return {{"AllreduceOfEveryDtypeAndOp", AllreduceOfEveryDtypeAndOp},
          {"AllreduceCompressed", AllreduceCompressed},
          {"SumsAreInFixedOrder", SumsAreInFixedOrder},
          {"BroadcastFromEveryRoot", BroadcastFromEveryRoot},
          {"AllgatherOfDifferentCounts", AllgatherOfDifferentCounts},
          {"ChunksMayChangeBetweenBatches", ChunksMayChangeBetweenBatches},
          {"OutputsBeyondTheCache", OutputsBeyondTheCache},
          {"NothingToMove", NothingToMove}};
}

}  // namespace hvd
