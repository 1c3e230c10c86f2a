// SPDX-License-Identifier: Apache-2.0
// Random collectives: how they are drawn, their inputs, and what must come out.
//
// Ranks that draw from generators with one seed have the same calls, and any
// rank can tell any rank's inputs.
#ifndef HVD_TESTS_CORE_RANDOM_CALLS_H_
#define HVD_TESTS_CORE_RANDOM_CALLS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/request.h"
#include "core/runtime.h"
#include "core/verbs/verb_rules.h"
#include "expected_adasum.h"
#include "harness.h"
#include "typed_values.h"

namespace hvd {

using Random = std::mt19937_64;

inline int64_t Below(Random& random, int64_t bound) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(bound));
}

template <typename T>
const T& Pick(Random& random, const std::vector<T>& from) {
  return from[Below(random, static_cast<int64_t>(from.size()))];
}

// One collective, the same on every rank of its set.
struct RandomCall {
  std::string name;
  int set = 0;
  Signature signature;           // root: within the set; no shapes
  std::vector<int64_t> counts;   // elements; varying verbs: up to that many
  std::vector<int> absent = {};  // ranks of the set that have joined, ascending
};

// What the ranks that have not joined call instead, where the call needs some
// that have.
inline void CallWithout(std::vector<int> absent, RandomCall* call) {
  if (absent.empty()) return;
  Signature& signature = call->signature;
  if (signature.verb == Verb::kReducescatter) {
    signature.verb = Verb::kAllreduce;
  }
  if (signature.verb == Verb::kBroadcast) {
    signature.root = 0;
    for (int rank : absent) signature.root += rank == signature.root ? 1 : 0;
  }
  call->absent = std::move(absent);
}

inline RandomCall DrawCall(Random& random, std::string name,
                           const std::vector<ProcessSet>& sets) {
  RandomCall call;
  call.name = std::move(name);
  if (random() % 3 == 0) {
    call.set = static_cast<int>(Below(random, sets.size()));
  }
  Signature& signature = call.signature;
  signature.verb = static_cast<Verb>(Below(random, kVerbCount));
  if (random() % 3 == 0) signature.verb = Verb::kAllreduce;
  signature.dtype = signature.wire_dtype = Pick(random, kReducedTypes);
  signature.root =
      static_cast<int32_t>(Below(random, sets[call.set].ranks.size()));
  if (signature.verb != Verb::kBroadcast) signature.root = 0;
  if (RulesOf(signature.verb).reduces) {
    signature.reduce_op = Pick(random, kReduceOps);
    if (RulesOf(signature.verb).has_ids &&
        signature.reduce_op != ReduceOp::kAverage) {
      signature.reduce_op = ReduceOp::kSum;
    }
    if (signature.reduce_op == ReduceOp::kSum && random() % 2 == 0) {
      signature.prescale = Pick<double>(random, {0.5, 2.0});
      signature.postscale = Pick<double>(random, {0.5, 1.0});
    }
    if (RulesOf(signature.verb).offers_adasum && IsFloating(signature.dtype) &&
        random() % 4 == 0) {
      signature.reduce_op = ReduceOp::kAdasum;
    }
    const bool wide = signature.dtype == DataType::kFloat32 ||
                      signature.dtype == DataType::kFloat64;
    if (wide && random() % 3 == 0) {
      signature.wire_dtype =
          Pick<DataType>(random, {DataType::kFloat16, DataType::kBfloat16});
    }
  }
  const int64_t tensors = random() % 4 == 0 ? 1 + Below(random, 4) : 1;
  for (int64_t i = 0; i < tensors; ++i) {
    const int64_t most = Pick<int64_t>(random, {1, 2, 30, 700, 9000});
    call.counts.push_back(Below(random, most + 1));
  }
  if (RulesOf(signature.verb).has_ids) {
    signature.id_dtype =
        Pick<DataType>(random, {DataType::kInt32, DataType::kInt64});
    signature.sparse_algo = static_cast<SparseAlgo>(Below(random, 3));
    for (int64_t count : call.counts) {
      // Few or many of the table's rows, and tables of unknown size.
      signature.table_rows.push_back(
          Pick<int64_t>(random, {2 * count + 1, 500 * count + 1, -1}));
    }
  }
  return call;
}

// What a rank puts in, and what it gets. `salt` makes each step's differ.
class CallBuffers {
 public:
  CallBuffers(const RandomCall& call, const ProcessSet& set, uint64_t salt)
      : call_(call),
        set_(set),
        salt_(salt % 1000),
        out_(call.counts.size()),
        out_ids_(call.counts.size()) {
    for (size_t i = 0; i < call.counts.size(); ++i) {
      const int64_t count = Count(i, set.rank);
      in_.emplace_back(count * SizeOf(call.signature.dtype));
      for (int64_t k = 0; k < count; ++k) {
        PutValue(dtype(), in_[i].data(), k, Input(i, set.rank, k));
      }
      if (has_ids()) {
        in_ids_.emplace_back(count * SizeOf(call.signature.id_dtype));
        for (int64_t k = 0; k < count; ++k) {
          PutValue(call.signature.id_dtype, in_ids_[i].data(), k,
                   static_cast<double>(IdOf(set.rank, k)));
        }
      }
      if (!varies()) out_[i] = in_[i];
      if (call.signature.verb == Verb::kReducescatter) {
        out_[i].resize(static_cast<size_t>(Owned(i).size()) *
                       SizeOf(call.signature.dtype));
      }
    }
  }

  // Fills in all but key, step, ticket and done.
  void Describe(Entry* entry) {
    entry->request.signature = call_.signature;
    for (size_t i = 0; i < in_.size(); ++i) {
      entry->request.signature.shapes.push_back({Count(i, set_.rank)});
      entry->inputs.push_back(in_[i].data());
      if (has_ids()) entry->inputs.push_back(in_ids_[i].data());
      if (!varies()) entry->outputs.push_back(out_[i].data());
      if (call_.signature.verb == Verb::kAlltoall) {
        std::vector<int64_t>& splits = entry->splits.emplace_back();
        for (int to = 0; to < ranks(); ++to) {
          splits.push_back(Split(i, set_.rank, to));
        }
      }
    }
    entry->allocate = [this](const std::vector<Shape>& shapes,
                             RankCountsSpan rows, std::vector<void*>* outputs) {
      for (size_t i = 0; i < shapes.size(); ++i) {
        int64_t total = 0;
        for (int64_t count : rows[i]) total += count;
        EXPECT_EQ(total, shapes[i][0]);
        out_[i].resize(CountOf(shapes[i]) * SizeOf(dtype()));
        outputs->push_back(out_[i].data());
        if (!has_ids()) continue;
        out_ids_[i].resize(shapes[i][0] * SizeOf(call_.signature.id_dtype));
        outputs->push_back(out_ids_[i].data());
      }
      return Status::Ok();
    };
  }

  // Expects the outputs that the ranks' inputs make.
  void Check(const std::string& where) const {
    for (size_t i = 0; i < out_.size(); ++i) {
      const std::vector<double> wanted = Wanted(i);
      const std::string text =
          where + ", '" + call_.name + "' tensor " + std::to_string(i) + ": ";
      if (!test::Expect(out_[i].size() == wanted.size() * SizeOf(dtype()),
                        HVD_HERE, text + "another size")) {
        continue;
      }
      for (size_t k = 0; k < wanted.size(); ++k) {
        const double got = GetValue(dtype(), out_[i].data(), k);
        if (std::abs(got - wanted[k]) <= Tolerance()) continue;
        test::Expect(false, HVD_HERE,
                     text + std::to_string(wanted[k]) + " at " +
                         std::to_string(k) + ", not " + std::to_string(got));
        break;
      }
      if (!has_ids()) continue;
      int64_t k = 0;
      for (const auto& [id, sum] : WantedRows(i)) {
        const double got =
            GetValue(call_.signature.id_dtype, out_ids_[i].data(), k++);
        test::Expect(got == static_cast<double>(id), HVD_HERE,
                     text + "another id");
      }
    }
  }

 private:
  DataType dtype() const { return call_.signature.dtype; }
  int ranks() const { return static_cast<int>(set_.ranks.size()); }

  bool IsPresent(int rank) const {
    return PresentBelow(rank + 1) > PresentBelow(rank);
  }
  // How many ranks below `end` are.
  int64_t PresentBelow(int end) const {
    const auto last =
        std::lower_bound(call_.absent.begin(), call_.absent.end(), end);
    return end - (last - call_.absent.begin());
  }
  bool has_ids() const { return RulesOf(call_.signature.verb).has_ids; }
  // Neighbours in rank have equal ids in half of their rows.
  int64_t IdOf(int rank, int64_t k) const {
    return 2 * k + (k % 2) * ((rank + salt_) % 2);
  }
  bool varies() const { return RulesOf(call_.signature.verb).first_dim_varies; }

  int64_t Count(size_t tensor, int rank) const {
    const int64_t count = call_.counts[tensor];
    if (!varies()) return count;
    return (salt_ + rank * 7) * (count + 1) % 11 * count / 11;
  }
  // What a reduction gives this rank.
  RowRange Owned(size_t tensor) const {
    const int64_t count = call_.counts[tensor];
    return call_.signature.verb == Verb::kReducescatter
               ? ScatteredRows(count, set_.rank, ranks())
               : RowRange{0, count};
  }
  // Rows that go from one rank to another: cuts of the sender's rows.
  int64_t Split(size_t tensor, int from, int to) const {
    return Cut(tensor, from, to + 1) - Cut(tensor, from, to);
  }
  int64_t Cut(size_t tensor, int from, int to) const {
    const int64_t count = Count(tensor, from);
    const int64_t below = PresentBelow(to), all = PresentBelow(ranks());
    if (below == 0 || below == all) return below == 0 ? 0 : count;
    const int64_t even = count * below / all;
    return (salt_ + from) % 3 == 0 ? (even < count / 2 ? 0 : count) : even;
  }

  double Input(size_t tensor, int rank, int64_t k) const {
    return SampleValue(dtype(), call_.signature.reduce_op, rank,
                       Shifted(tensor, k));
  }
  int64_t Shifted(size_t tensor, int64_t k) const {
    return k + salt_ + static_cast<int64_t>(tensor) * 13;
  }

  std::vector<double> Wanted(size_t tensor) const {
    const Signature& signature = call_.signature;
    std::vector<double> wanted;
    if (signature.verb == Verb::kAlltoall) {
      for (int rank = 0; rank < ranks(); ++rank) {
        if (!IsPresent(rank)) continue;
        for (int64_t k = Cut(tensor, rank, set_.rank);
             k < Cut(tensor, rank, set_.rank + 1); ++k) {
          wanted.push_back(Input(tensor, rank, k));
        }
      }
      return wanted;
    }
    if (signature.reduce_op == ReduceOp::kAdasum) return WantedAdasum(tensor);
    if (has_ids()) {
      for (const auto& [id, sum] : WantedRows(tensor)) wanted.push_back(sum);
      return wanted;
    }
    if (RulesOf(signature.verb).reduces) {
      const RowRange own = Owned(tensor);
      for (int64_t k = own.begin; k < own.end; ++k) {
        wanted.push_back(ExpectedReduction(
            dtype(), signature.wire_dtype, signature.reduce_op, ranks(),
            Shifted(tensor, k), signature.prescale, signature.postscale,
            call_.absent));
      }
      return wanted;
    }
    for (int rank = 0; rank < ranks(); ++rank) {
      // A barrier leaves all as it is.
      const int from =
          signature.verb == Verb::kBarrier ? set_.rank : signature.root;
      if (signature.verb != Verb::kAllgather && rank != from) continue;
      if (!IsPresent(rank)) continue;
      for (int64_t k = 0; k < Count(tensor, rank); ++k) {
        wanted.push_back(Input(tensor, rank, k));
      }
    }
    return wanted;
  }

  // The result for each id.
  std::map<int64_t, double> WantedRows(size_t tensor) const {
    const Signature& signature = call_.signature;
    const auto round = [&](double value) {
      return IsFloating(dtype()) ? value : std::trunc(value);
    };
    std::map<int64_t, double> rows;
    for (int rank = 0; rank < ranks(); ++rank) {
      if (!IsPresent(rank)) continue;
      for (int64_t k = 0; k < Count(tensor, rank); ++k) {
        // The samples and their scales are exact in every floating type.
        rows[IdOf(rank, k)] +=
            round(Input(tensor, rank, k) * signature.prescale);
      }
    }
    for (auto& [id, sum] : rows) {
      if (signature.reduce_op == ReduceOp::kAverage) sum = round(sum / ranks());
      sum = round(sum * signature.postscale);
    }
    return rows;
  }

  std::vector<double> WantedAdasum(size_t tensor) const {
    const Signature& signature = call_.signature;
    std::vector<Vector> vectors(static_cast<size_t>(ranks()));
    for (int rank = 0; rank < ranks(); ++rank) {
      for (int64_t k = 0; k < call_.counts[tensor]; ++k) {
        // The samples and their scales are exact in every floating type.
        const double value = Input(tensor, rank, k) * signature.prescale;
        vectors[rank].push_back(IsPresent(rank) ? value : 0.0);
      }
    }
    Vector wanted = ExpectedAdasum(std::move(vectors));
    for (double& value : wanted) value *= signature.postscale;
    return wanted;
  }

  double Tolerance() const {
    const double epsilon =
        std::max(Epsilon(dtype()), Epsilon(call_.signature.wire_dtype));
    // Sums of 8 samples, twice that by a prescale, and products stay below.
    return RulesOf(call_.signature.verb).reduces ? epsilon * 64 : 0;
  }

  const RandomCall call_;
  const ProcessSet set_;
  const int64_t salt_;
  std::vector<std::vector<char>> in_, out_;
  std::vector<std::vector<char>> in_ids_, out_ids_;
};

}  // namespace hvd

#endif  // HVD_TESTS_CORE_RANDOM_CALLS_H_
