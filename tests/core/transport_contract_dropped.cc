// SPDX-License-Identifier: Apache-2.0
// Contract cases: a rank that does not want a result any more, because its step
// was aborted, takes part, and its other results are right.
#include <utility>
#include <vector>

#include "harness.h"
#include "transport_contract.h"

namespace hvd {
namespace {

constexpr Verb kVerbs[] = {Verb::kAllreduce,     Verb::kBroadcast,
                           Verb::kAllgather,     Verb::kAlltoall,
                           Verb::kReducescatter, Verb::kSparseAllreduce};

float ValueOf(int rank, size_t segment, int64_t i) {
  return static_cast<float>(rank * 100 + static_cast<int>(segment) * 10 + i);
}

// A batch of some tensors of this rank.
class DroppingCall {
 public:
  // The last rank drops this one of three tensors. 3: it drops all.
  DroppingCall(const Transport& transport, Verb verb, size_t dropped)
      : rank_(transport.rank()), size_(transport.size()), dropped_(dropped) {
    batch_.verb = verb;
    const bool varies = verb == Verb::kAllgather || verb == Verb::kAlltoall ||
                        verb == Verb::kSparseAllreduce;
    for (size_t s = 0; s < kTensors; ++s) {
      AddInput(s);
      out_.emplace_back(static_cast<size_t>(OutputCount(s)), -1.0f);
      out_ids_.emplace_back(ids_[s].size());
      if (!varies) batch_.segments[s].out = IsDropped(s) ? nullptr : Out(s);
    }
    if (!varies) return;
    batch_.allocate = [this](const RankCounts&, std::vector<void*>* outputs) {
      for (size_t s = 0; s < kTensors; ++s) {
        outputs->push_back(IsDropped(s) ? nullptr : Out(s));
        if (batch_.verb != Verb::kSparseAllreduce) continue;
        outputs->push_back(IsDropped(s) ? nullptr : out_ids_[s].data());
      }
      return Status::Ok();
    };
  }
  DroppingCall(const DroppingCall&) = delete;
  DroppingCall& operator=(const DroppingCall&) = delete;

  void Run(Transport* transport) {
    bool done = false;
    Status status;
    transport->Start(batch_, [&](const Status& result) {
      status = result;
      done = true;
    });
    if (!Drive(transport, [&] { return done; })) return;
    EXPECT_EQ(status.message(), "");
    for (size_t s = 0; s < kTensors && status.ok(); ++s) Check(s);
  }

 private:
  static constexpr size_t kTensors = 3;

  bool IsDropped(size_t s) const {
    return rank_ == size_ - 1 && (s == dropped_ || dropped_ == kTensors);
  }
  float* Out(size_t s) { return out_[s].data(); }

  // Rows of one element that this rank puts in.
  int64_t RowsOf(size_t s) const {
    const auto rows = static_cast<int64_t>(5 + s);
    if (batch_.verb == Verb::kAlltoall) return rows * size_;
    // They do not divide among the ranks.
    return batch_.verb == Verb::kReducescatter ? rows * size_ + 1 : rows;
  }

  int64_t OutputCount(size_t s) const {
    if (batch_.verb == Verb::kAllgather) return RowsOf(s) * size_;
    return batch_.verb == Verb::kReducescatter
               ? ScatteredRows(RowsOf(s), rank_, size_).size()
               : RowsOf(s);
  }

  void AddInput(size_t s) {
    std::vector<float>& in = in_.emplace_back();
    std::vector<int64_t>& ids = ids_.emplace_back();
    for (int64_t i = 0; i < RowsOf(s); ++i) {
      in.push_back(ValueOf(rank_, s, i));
      if (batch_.verb == Verb::kSparseAllreduce) ids.push_back(i * 3);
    }
    Segment& segment = batch_.segments.emplace_back();
    segment.in = in.data();
    segment.count = segment.rows = RowsOf(s);
    segment.ids = ids.data();
    if (batch_.verb == Verb::kAlltoall) {
      batch_.rows.emplace_back(static_cast<size_t>(size_), RowsOf(s) / size_);
    }
  }

  float Expected(size_t s, int64_t i) const {
    const int64_t rows = RowsOf(s);
    switch (batch_.verb) {
      case Verb::kBroadcast:
        return ValueOf(0, s, i);
      case Verb::kAllgather:
        return ValueOf(static_cast<int>(i / rows), s, i % rows);
      case Verb::kAlltoall: {
        const int64_t part = rows / size_;
        return ValueOf(static_cast<int>(i / part), s, rank_ * part + i % part);
      }
      case Verb::kReducescatter:
        i += ScatteredRows(rows, rank_, size_).begin;
        break;
      default:
        break;
    }
    float sum = 0;
    for (int rank = 0; rank < size_; ++rank) sum += ValueOf(rank, s, i);
    return sum;
  }

  void Check(size_t s) const {
    int64_t wrong = 0;
    for (int64_t i = 0; i < OutputCount(s); ++i) {
      const float expected = IsDropped(s) ? -1.0f : Expected(s, i);
      wrong += out_[s][static_cast<size_t>(i)] != expected;
    }
    if (!IsDropped(s)) wrong += out_ids_[s] != ids_[s];
    EXPECT_EQ(wrong, 0);
  }

  const int rank_, size_;
  const size_t dropped_;
  Batch batch_;
  std::vector<std::vector<float>> in_, out_;
  std::vector<std::vector<int64_t>> ids_, out_ids_;
};

void ResultsThatARankDrops(ContractRank* self) {
  auto transport = self->NewTransport();
  for (const Verb verb : kVerbs) {
    // One tensor of three, and all of them.
    for (size_t dropped = 0; dropped < 4; ++dropped) {
      DroppingCall call(*transport, verb, dropped);
      call.Run(transport.get());
    }
  }
  CheckSetIsWell(transport.get());
}

// Without others a tensor may not be packed.
void ResultOfOneTensorThatARankDrops(ContractRank* self) {
  auto transport = self->NewTransport();
  const auto count = self->Elements(2);
  for (const Verb verb :
       {Verb::kAllreduce, Verb::kBroadcast, Verb::kReducescatter}) {
    Batch batch;
    batch.verb = verb;
    std::vector<float> in(static_cast<size_t>(count * self->size()), 1.0f);
    Call call(in, count * self->size());
    Segment& segment = batch.segments.emplace_back();
    segment.in = call.in().data();
    segment.count = segment.rows = count * self->size();
    const bool drops = self->rank() == self->size() - 1;
    segment.out = drops ? nullptr : call.out().data();
    call.Start(transport.get(), std::move(batch));
    if (!Drive(transport.get(), [&] { return call.done(); })) return;
    EXPECT_EQ(call.status().message(), "");
    const float sum =
        verb == Verb::kBroadcast ? 1.0f : static_cast<float>(self->size());
    EXPECT_EQ(call.out()[0], drops ? -1.0f : sum);
    EXPECT_EQ(call.out()[static_cast<size_t>(count) - 1], drops ? -1.0f : sum);
  }
  CheckSetIsWell(transport.get());
}

}  // namespace

std::vector<ContractCase> DroppedCases() {
  return {
      {"ResultsThatARankDrops", ResultsThatARankDrops},
      {"ResultOfOneTensorThatARankDrops", ResultOfOneTensorThatARankDrops},
  };
}

}  // namespace hvd
