// SPDX-License-Identifier: Apache-2.0
// A walk over powers of two, and then a play-off among the best.
#include "core/control/tuning_search.h"

#include <algorithm>

namespace hvd {
namespace {

using Axis = std::vector<int64_t>;

constexpr int64_t kLeastFusionBytes = 64 << 10;
constexpr int64_t kMostFusionBytes = 128 << 20;
constexpr int64_t kLeastChunkBytes = 32 << 10;
constexpr int64_t kMostBatchesInFlight = 16;

// A neighbour that is better by less than this factor may be so by chance.
constexpr double kGain = 1.03;
constexpr size_t kFinalists = 3;
constexpr size_t kSamplesOfFinalist = 3;

// Powers of two, with `start` among them.
Axis MakeAxis(int64_t least, int64_t most, int64_t start) {
  Axis axis;
  for (int64_t value = least; value <= most; value *= 2) axis.push_back(value);
  const auto place = std::lower_bound(axis.begin(), axis.end(), start);
  if (place == axis.end() || *place != start) axis.insert(place, start);
  return axis;
}

size_t IndexOf(const Axis& axis, int64_t value) {
  return static_cast<size_t>(std::lower_bound(axis.begin(), axis.end(), value) -
                             axis.begin());
}

// A power of two that is half the axis or more. So the walk gets across flat
// regions, wherever it starts.
ptrdiff_t FirstStride(const Axis& axis) {
  ptrdiff_t stride = 1;
  while (stride * 2 <= static_cast<ptrdiff_t>(axis.size())) stride *= 2;
  return stride;
}

double Median(std::vector<double> scores) {
  std::sort(scores.begin(), scores.end());
  const size_t half = scores.size() / 2;
  return scores.size() % 2 == 1 ? scores[half]
                                : (scores[half - 1] + scores[half]) / 2;
}

}  // namespace

TuningSearch::TuningSearch(const Tuning& start, int64_t most_chunk_bytes,
                           int64_t most_samples)
    : axes_{start.chunk_bytes > 0 ? MakeAxis(kLeastChunkBytes, most_chunk_bytes,
                                             start.chunk_bytes)
                                  : Axis{0},
            MakeAxis(kLeastFusionBytes, kMostFusionBytes, start.fusion_bytes),
            MakeAxis(1, kMostBatchesInFlight, start.batches_in_flight)},
      start_{IndexOf(axes_[0], start.chunk_bytes),
             IndexOf(axes_[1], start.fusion_bytes),
             IndexOf(axes_[2], start.batches_in_flight)},
      most_samples_(most_samples),
      wanted_(start_) {}

std::optional<Tuning> TuningSearch::Next() const {
  if (!wanted_.has_value()) return std::nullopt;
  return TuningAt(*wanted_);
}

void TuningSearch::Report(double score) {
  std::vector<double>& scores = samples_[*wanted_];
  if (scores.empty()) known_.push_back(*wanted_);
  scores.push_back(score);
  ++sample_count_;
  wanted_ = Wanted();
}

Tuning TuningSearch::best() const { return TuningAt(BestPlace()); }

double TuningSearch::best_score() const {
  return samples_.empty() ? 0 : Median(samples_.at(BestPlace()));
}

Tuning TuningSearch::TuningAt(const Place& place) const {
  return {axes_[1][place[1]], axes_[0][place[0]], axes_[2][place[2]]};
}

TuningSearch::Place TuningSearch::Moved(Place place, size_t axis,
                                        ptrdiff_t steps) const {
  const auto last = static_cast<ptrdiff_t>(axes_[axis].size()) - 1;
  const auto index = static_cast<ptrdiff_t>(place[axis]) + steps;
  place[axis] = static_cast<size_t>(std::clamp<ptrdiff_t>(index, 0, last));
  return place;
}

std::optional<TuningSearch::Place> TuningSearch::Wanted() const {
  if (sample_count_ >= most_samples_) return std::nullopt;
  // The other samples are for the play-off.
  if (sample_count_ < most_samples_ - most_samples_ / 4) {
    if (std::optional<Place> place = Walk()) return place;
  }
  return PlayOff();
}

std::optional<TuningSearch::Place> TuningSearch::Walk() const {
  Place here = start_;
  // A change of one value may move the best place of another. From the second
  // sweep on, only neighbours are tried.
  for (bool is_first = true;; is_first = false) {
    const Place before = here;
    for (size_t axis = 0; axis < kAxes; ++axis) {
      const ptrdiff_t stride = is_first ? FirstStride(axes_[axis]) : 1;
      if (auto place = WalkAlong(axis, stride, &here)) return place;
    }
    if (here == before && !is_first) return std::nullopt;
  }
}

std::optional<TuningSearch::Place> TuningSearch::WalkAlong(
    size_t axis, ptrdiff_t first_stride, Place* here) const {
  for (ptrdiff_t stride = first_stride; stride > 0; stride /= 2) {
    for (bool moved = true; moved;) {
      moved = false;
      for (ptrdiff_t steps : {stride, -stride}) {
        const Place there = Moved(*here, axis, steps);
        if (!IsKnown(there)) return there;
        if (samples_.at(there).front() <= samples_.at(*here).front() * kGain) {
          continue;
        }
        *here = there;
        moved = true;
        break;
      }
    }
  }
  return std::nullopt;
}

std::optional<TuningSearch::Place> TuningSearch::PlayOff() const {
  const std::vector<Place> finalists = Finalists();
  // Finalists are measured in turns, so that other load on the machine affects
  // all of them alike.
  const auto count = [&](const Place& place) {
    return samples_.at(place).size();
  };
  const auto least = std::min_element(
      finalists.begin(), finalists.end(),
      [&](const Place& a, const Place& b) { return count(a) < count(b); });
  if (count(*least) >= kSamplesOfFinalist) return std::nullopt;
  return *least;
}

std::vector<TuningSearch::Place> TuningSearch::Finalists() const {
  // Equally fast places stay in the order in which they were measured.
  std::vector<Place> places = known_;
  const auto first = [&](const Place& place) {
    return samples_.at(place).front();
  };
  std::stable_sort(
      places.begin(), places.end(),
      [&](const Place& a, const Place& b) { return first(a) > first(b); });
  // Those far behind the first one too: it may be far ahead by chance.
  places.resize(std::min(places.size(), kFinalists));
  return places;
}

TuningSearch::Place TuningSearch::BestPlace() const {
  Place best = start_;
  double most = 0;
  for (const Place& place : Finalists()) {
    const double score = Median(samples_.at(place));
    if (score <= most) continue;
    best = place;
    most = score;
  }
  return best;
}

}  // namespace hvd
