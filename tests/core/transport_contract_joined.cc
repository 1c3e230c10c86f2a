// SPDX-License-Identifier: Apache-2.0
// Contract cases: ranks that have joined take part without tensors.
#include <algorithm>
#include <cmath>
#include <utility>

#include "harness.h"
#include "transport_contract.h"
#include "typed_values.h"

namespace hvd {
namespace {

// Which ranks have joined: none, the first, the last, or all but one.
std::vector<std::vector<int>> Absences(int size) {
  std::vector<std::vector<int>> absences = {{}};
  if (size == 1) return absences;
  absences.push_back({0});
  absences.push_back({size - 1});
  std::vector<int> most;
  for (int rank = 0; rank < size; ++rank) {
    if (rank != size / 2) most.push_back(rank);
  }
  absences.push_back(std::move(most));
  return absences;
}

bool Has(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// What the present ranks' samples reduce to.
double Expected(const Batch& batch, int size, const std::vector<int>& absent,
                int64_t i) {
  double result = 0;
  bool is_first = true;
  for (int rank = 0; rank < size; ++rank) {
    if (Has(absent, rank)) continue;
    const double value = SampleValue(batch.dtype, batch.reduce_op, rank, i);
    if (std::exchange(is_first, false)) {
      result = value;
    } else if (batch.reduce_op == ReduceOp::kMin) {
      result = std::min(result, value);
    } else if (batch.reduce_op == ReduceOp::kMax) {
      result = std::max(result, value);
    } else if (batch.reduce_op == ReduceOp::kProduct) {
      result *= value;
    } else {
      result += value;
    }
  }
  if (batch.reduce_op != ReduceOp::kAverage) {
    return Wrapped(batch.dtype, result);
  }
  result /= static_cast<double>(batch.divisor > 0 ? batch.divisor : size);
  return IsFloating(batch.dtype) ? result : std::trunc(result);
}

void CheckAllreduce(Transport* transport, Batch batch,
                    const std::vector<int>& absent) {
  constexpr int64_t kCount = 700;
  const bool is_absent = Has(absent, transport->rank());
  const size_t bytes = static_cast<size_t>(kCount) * SizeOf(batch.dtype);
  std::vector<char> in(bytes), out(bytes);
  for (int64_t i = 0; i < kCount; ++i) {
    PutValue(batch.dtype, in.data(), i,
             SampleValue(batch.dtype, batch.reduce_op, transport->rank(), i));
  }
  Segment segment{is_absent ? nullptr : in.data(),
                  is_absent ? nullptr : out.data(), kCount};
  batch.segments = {segment, segment};
  batch.has_absent = !absent.empty();
  std::vector<char> second(bytes);
  if (!is_absent) batch.segments[1].out = second.data();
  Status result = Internal("not done");
  bool done = false;
  transport->Start(batch, [&](const Status& status) {
    result = status;
    done = true;
  });
  if (!Drive(transport, [&] { return done; })) return;
  EXPECT_EQ(result.message(), "");
  if (is_absent) return;
  const double epsilon = Epsilon(batch.dtype) * 4;
  for (int64_t i = 0; i < kCount; ++i) {
    const double wanted = Expected(batch, transport->size(), absent, i);
    const double got = GetValue(batch.dtype, out.data(), i);
    const double scale = std::max(1.0, std::abs(wanted));
    if (!EXPECT_TRUE(std::abs(got - wanted) <= epsilon * scale * 4)) break;
  }
  EXPECT_TRUE(out == second);
}

void JoinedRanksAddTheIdentity(ContractRank* self) {
  auto transport = self->NewTransport();
  const int size = self->size();
  for (const std::vector<int>& absent : Absences(size)) {
    // elementwise_test has the identities of every dtype.
    for (DataType dtype :
         {DataType::kInt8, DataType::kFloat16, DataType::kFloat32}) {
      for (ReduceOp op : kReduceOps) {
        Batch batch;
        batch.dtype = batch.wire_dtype = dtype;
        batch.reduce_op = op;
        CheckAllreduce(transport.get(), batch, absent);
        if (op != ReduceOp::kAverage) continue;
        batch.divisor = size - static_cast<int64_t>(absent.size());
        CheckAllreduce(transport.get(), batch, absent);
      }
    }
  }
}

// An allgather has no rows of a joined rank, and drops what comes there. So
// does an alltoall, and a broadcast from another rank.
void JoinedRanksDropWhatComes(ContractRank* self) {
  auto transport = self->NewTransport();
  const int rank = self->rank(), size = self->size();
  for (const std::vector<int>& absent : Absences(size)) {
    for (Verb verb : {Verb::kAllgather, Verb::kAlltoall, Verb::kBroadcast}) {
      const bool is_absent = Has(absent, rank);
      const int64_t rows = self->Elements(3) + 7;
      Batch batch;
      batch.verb = verb;
      batch.has_absent = !absent.empty();
      std::vector<int64_t>& counts = batch.rows.emplace_back();
      int64_t arriving = 0, leaving = 0;
      for (int peer = 0; peer < size; ++peer) {
        const bool moves = !Has(absent, peer) && !is_absent;
        counts.push_back(verb == Verb::kAllgather ? Has(absent, peer) ? 0 : rows
                         : moves                  ? rows
                                                  : 0);
        leaving += counts.back();
        arriving += Has(absent, peer) ? 0 : rows;
      }
      if (verb == Verb::kBroadcast) {
        batch.rows.clear();
        while (Has(absent, batch.root)) ++batch.root;
        leaving = arriving = rows;
      } else if (verb == Verb::kAllgather) {
        leaving = is_absent ? 0 : rows;
      }
      std::vector<float> in(static_cast<size_t>(leaving),
                            static_cast<float>(rank));
      std::vector<float> out(static_cast<size_t>(arriving), -1.0f);
      Segment segment{in.data(), out.data(), leaving};
      if (is_absent) segment.in = segment.out = nullptr;
      batch.segments = {segment};
      batch.segments[0].rows = leaving;
      bool done = false;
      transport->Start(batch, [&](const Status& status) {
        EXPECT_EQ(status.message(), "");
        done = true;
      });
      if (!Drive(transport.get(), [&] { return done; })) return;
      if (is_absent) continue;
      size_t at = 0;
      for (int peer = 0; peer < size; ++peer) {
        if (Has(absent, peer)) continue;
        if (verb == Verb::kBroadcast && peer != batch.root) continue;
        const auto begin = out.begin() + static_cast<std::ptrdiff_t>(at);
        EXPECT_EQ(std::count(begin, begin + rows, static_cast<float>(peer)),
                  rows);
        at += static_cast<size_t>(rows);
      }
    }
  }
}

}  // namespace

std::vector<ContractCase> JoinedCases() {
  return {{"JoinedRanksAddTheIdentity", JoinedRanksAddTheIdentity},
          {"JoinedRanksDropWhatComes", JoinedRanksDropWhatComes}};
}

}  // namespace hvd
