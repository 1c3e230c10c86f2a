// SPDX-License-Identifier: Apache-2.0
// Adasum: an allreduce that weighs vectors by how much they have in common.
//
// A batch is worked on in rounds of some tensors. A round has these phases:
//
// 1. Every rank sends each owner its elements. They stay in memory of the
//    transport's own.
// 2. For each level of the tree: an owner forms the dot products of its
//    elements, and tells them to all. Every rank adds them up in the same
//    order. So all know the same weights.
// 3. An owner forms the weighted sum of its elements, in float64.
// 4. It sends the result to all.
//
// All sizes are known before. So every phase runs on every rank, and carries
// poison on. A rank that has joined puts in zeros, which change nothing, and
// owns elements as others do.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "cpu/dot_products.h"
#include "cpu/elementwise.h"
#include "transport/collectives/adasum_plan.h"
#include "transport/collectives/adasum_rows.h"
#include "transport/collectives/adasum_tree.h"
#include "transport/collectives/local_phase.h"
#include "transport/collectives/phase.h"

namespace hvd {
namespace {

// So many chunks of data make a round. Its memory is used again in the next.
constexpr int64_t kRoundChunks = 16;

std::vector<Dots> NoDots(size_t count) { return std::vector<Dots>(count); }

// The state of a batch between its phases, which hold it. Thread: the
// transport's.
class Adasum : public std::enable_shared_from_this<Adasum> {
 public:
  explicit Adasum(BatchWork* work)
      : work_(work),
        plan_(CountsOf(work->batch().segments), work->size(),
              std::max(kRoundChunks * work->chunk_bytes() / ElementBytes(*work),
                       int64_t{1})),
        rows_(work->size(), ElementBytes(*work)) {}

  // The first phase of the current round.
  std::unique_ptr<Phase> BeginRound();

 private:
  static int64_t ElementBytes(const BatchWork& work) {
    return static_cast<int64_t>(SizeOf(work.batch().dtype));
  }
  // Some of this rank's elements of a tensor.
  struct Tile {
    size_t segment = 0;
    int64_t first = 0;
    int64_t count = 0;
  };
  using Then = std::unique_ptr<Phase> (Adasum::*)();
  // A phase's Next.
  Phase::Next Go(Then then) {
    return [self = shared_from_this(), then](const Phase&) {
      return (self.get()->*then)();
    };
  }

  std::unique_ptr<Phase> FormDots();
  std::unique_ptr<Phase> TellDots();
  std::unique_ptr<Phase> ClimbUp();  // to the next level, or to the sums
  std::unique_ptr<Phase> FormSums();
  std::unique_ptr<Phase> SendSums();
  std::unique_ptr<Phase> EndRound();

  int size() const { return work_->size(); }
  DataType dtype() const { return work_->batch().dtype; }
  size_t first() const { return plan_.RoundBegin(round_); }
  size_t end() const { return plan_.RoundEnd(round_); }
  // Where the tensor's numbers are in weights_ and lengths_: one for each rank.
  size_t PlaceOf(size_t segment) const {
    return (segment - first()) * static_cast<size_t>(size());
  }
  // This rank's elements of the tensor.
  int64_t OwnedCount(size_t segment) const {
    return plan_.Owned(segment, work_->rank()).size();
  }
  // Operands whose memory of their own are the rows.
  Operands RowOperands();
  // Cuts the work on this rank's elements into tiles, and calls work(tile) for
  // each.
  template <typename Work>
  std::unique_ptr<Phase> NewTilePhase(Work work, Then then);
  // The sum of the rows of ranks [begin, end), each with its weight.
  void WeighRows(const Tile& tile, int begin, int end, double* out);
  int64_t TensorsOwned(int rank) const {
    return plan_.TensorsOwned(round_, rank);
  }
  // Adds up what all owners have told, and moves the weights.
  void Combine();

  BatchWork* const work_;
  const AdasumPlan plan_;
  size_t round_ = 0;
  AdasumRows rows_;
  std::vector<double> weights_, lengths_;  // of [segment of the round][rank]
  int level_ = 0;
  std::vector<AdasumPair> pairs_;  // of the level
  // A rank has one for [segment of which it owns a part][pair]. These are this
  // rank's own, and all ranks' own, one rank after another.
  std::vector<Dots> own_dots_, all_dots_;
};

Operands Adasum::RowOperands() {
  const Batch& batch = work_->batch();
  Operands operands = ReducedOperands(batch);
  operands.reduce_op = ReduceOp::kSum;
  operands.postscale = 1.0;
  return operands;
}

std::unique_ptr<Phase> Adasum::BeginRound() {
  std::vector<int64_t> counts(plan_.segment_count(), 0);
  for (size_t i = first(); i < end(); ++i) counts[i] = OwnedCount(i);
  if (!work_->is_detached() && !rows_.Reserve(counts)) {
    work_->FailHere(ResourceExhausted(
        "this rank has no memory for Adasum, which needs as much as the "
        "largest tensor takes."));
  }
  weights_.assign(PlaceOf(end()), 1.0);
  lengths_.assign(PlaceOf(end()), 0.0);
  level_ = 0;
  Operands operands = RowOperands();
  std::vector<SegmentMap> ins, outs;
  for (size_t i = first(); i < end(); ++i) {
    operands.segments[i].out = work_->is_detached() ? nullptr : rows_.Row(i, 0);
  }
  for (int rank = 0; rank < size(); ++rank) {
    ins.push_back(plan_.OwnedMap(round_, rank));
    std::vector<int64_t> firsts(counts);
    for (int64_t& at : firsts) at *= rank;
    outs.emplace_back(counts, std::move(firsts));
  }
  return NewAlltoallPhase(
      work_, std::move(operands), std::move(ins), std::move(outs),
      Go(AdasumLevels(size()) > 0 ? &Adasum::FormDots : &Adasum::FormSums));
}

template <typename Work>
std::unique_ptr<Phase> Adasum::NewTilePhase(Work work, Then then) {
  std::vector<int64_t> tiles(plan_.segment_count(), 0);
  for (size_t i = first(); i < end(); ++i) {
    tiles[i] = RoundUp(OwnedCount(i), kMostWeighed) / kMostWeighed;
  }
  SegmentMap map(tiles);
  const int64_t count = map.total();
  const auto run = [this, work, map = std::move(map)](int64_t from,
                                                      int64_t to) {
    map.ForRange(
        from, to, [&](size_t segment, int64_t tile, int64_t more, int64_t) {
          const int64_t owned = OwnedCount(segment);
          for (int64_t t = tile; t < tile + more; ++t) {
            const int64_t begin = t * kMostWeighed;
            work(Tile{segment, begin, std::min(kMostWeighed, owned - begin)});
          }
        });
  };
  return std::make_unique<LocalPhase>(
      work_, count, kMostWeighed * ElementBytes(*work_) * size(), run,
      Go(then));
}

void Adasum::WeighRows(const Tile& tile, int begin, int end, double* out) {
  std::vector<const void*> rows;
  for (int rank = begin; rank < end; ++rank) {
    rows.push_back(rows_.At(tile.segment, rank, tile.first));
  }
  const double* const weights = &weights_[PlaceOf(tile.segment)];
  Weigh(dtype(), rows, weights + begin, tile.count, out);
}

std::unique_ptr<Phase> Adasum::FormDots() {
  pairs_ = AdasumPairs(size(), level_);
  own_dots_ =
      NoDots(static_cast<size_t>(TensorsOwned(work_->rank())) * pairs_.size());
  // Where the tensor's dot products are.
  std::vector<size_t> places(plan_.segment_count(), 0);
  size_t place = 0;
  for (size_t i = first(); i < end(); ++i) {
    places[i] = place;
    if (OwnedCount(i) > 0) place += pairs_.size();
  }
  return NewTilePhase(
      [this, places](const Tile& tile) {
        alignas(64) double a[kMostWeighed], b[kMostWeighed];
        for (size_t p = 0; p < pairs_.size(); ++p) {
          const AdasumPair& pair = pairs_[p];
          WeighRows(tile, pair.begin, pair.middle, a);
          WeighRows(tile, pair.middle, pair.end, b);
          own_dots_[places[tile.segment] + p] += DotProducts(a, b, tile.count);
        }
      },
      &Adasum::TellDots);
}

std::unique_ptr<Phase> Adasum::TellDots() {
  constexpr int64_t kNumbers = sizeof(Dots) / sizeof(double);
  std::vector<SegmentMap> outs;
  int64_t total = 0;
  for (int rank = 0; rank < size(); ++rank) {
    const int64_t numbers =
        TensorsOwned(rank) * static_cast<int64_t>(pairs_.size()) * kNumbers;
    outs.push_back(SegmentMap({numbers}, {total}));
    total += numbers;
  }
  all_dots_ = NoDots(static_cast<size_t>(total / kNumbers));
  Operands operands;
  Segment& numbers = operands.segments.emplace_back();
  numbers.in = own_dots_.data();
  numbers.out = all_dots_.data();
  numbers.count = static_cast<int64_t>(own_dots_.size()) * kNumbers;
  operands.dtype = operands.wire_dtype = DataType::kFloat64;
  operands.is_callers = false;
  SegmentMap in({numbers.count});
  return NewAllgatherPhase(work_, std::move(operands), std::move(in),
                           std::move(outs), Go(&Adasum::ClimbUp));
}

void Adasum::Combine() {
  std::vector<size_t> next(static_cast<size_t>(size()));  // by owner
  size_t total = 0;
  for (int rank = 0; rank < size(); ++rank) {
    next[rank] = total;
    total += static_cast<size_t>(TensorsOwned(rank)) * pairs_.size();
  }
  for (size_t segment = first(); segment < end(); ++segment) {
    std::vector<Dots> sums = NoDots(pairs_.size());
    for (int shard = 0; shard < plan_.ShardCount(segment); ++shard) {
      size_t& from = next[plan_.OwnerOf(segment, shard)];
      for (Dots& sum : sums) sum += all_dots_[from++];
    }
    for (size_t p = 0; p < pairs_.size(); ++p) {
      CombinePair(pairs_[p], sums[p], &weights_[PlaceOf(segment)],
                  &lengths_[PlaceOf(segment)]);
    }
  }
}

std::unique_ptr<Phase> Adasum::ClimbUp() {
  if (!work_->is_detached()) Combine();
  return ++level_ < AdasumLevels(size()) ? FormDots() : FormSums();
}

std::unique_ptr<Phase> Adasum::FormSums() {
  for (double& weight : weights_) weight *= work_->batch().postscale;
  // The sum takes the place of the first row.
  return NewTilePhase(
      [this](const Tile& tile) {
        alignas(64) double sum[kMostWeighed];
        WeighRows(tile, 0, size(), sum);
        Unpack(DataType::kFloat64, dtype(), sum,
               rows_.At(tile.segment, 0, tile.first), tile.count);
      },
      &Adasum::SendSums);
}

std::unique_ptr<Phase> Adasum::SendSums() {
  Operands operands = RowOperands();
  operands.prescale = 1.0;
  operands.check_finite = false;
  std::vector<int64_t> counts(plan_.segment_count(), 0);
  for (size_t i = first(); i < end(); ++i) {
    operands.segments[i].in = work_->is_detached() ? nullptr : rows_.Row(i, 0);
    counts[i] = OwnedCount(i);
  }
  std::vector<SegmentMap> outs;
  for (int rank = 0; rank < size(); ++rank) {
    outs.push_back(plan_.OwnedMap(round_, rank));
  }
  return NewAllgatherPhase(work_, std::move(operands), SegmentMap(counts),
                           std::move(outs), Go(&Adasum::EndRound));
}

std::unique_ptr<Phase> Adasum::EndRound() {
  return ++round_ < plan_.round_count() ? BeginRound() : nullptr;
}

}  // namespace

std::unique_ptr<Phase> NewAdasumFirstPhase(BatchWork* work) {
  return std::make_shared<Adasum>(work)->BeginRound();
}

}  // namespace hvd
