// SPDX-License-Identifier: Apache-2.0
// TuningSearch: which values to measure next, and which are the best so far.
#ifndef HVD_CORE_CONTROL_TUNING_SEARCH_H_
#define HVD_CORE_CONTROL_TUNING_SEARCH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/tuning.h"

namespace hvd {

// Changes one value after the other. Strides begin long and end at a factor of
// two. It moves to a place that is better by more than the noise, until no
// neighbour is better. Then it measures the best few places again, in turns. So
// a lucky sample does not win, however lucky.
//
// Pure: the same scores give the same search. Owner and thread: those of the
// Autotuner.
class TuningSearch {
 public:
  // Begins at `start`. Its values need not be powers of two, and may lie
  // outside the range. Chunks have at most `most_chunk_bytes`. The search asks
  // for at most `most_samples` samples.
  TuningSearch(const Tuning& start, int64_t most_chunk_bytes,
               int64_t most_samples);

  // The values to measure. Nothing when the search is over.
  std::optional<Tuning> Next() const;
  // The score of the values that Next returned. It is above 0, and more is
  // better.
  void Report(double score);

  // The best values so far and their score. Before the first score: the start.
  Tuning best() const;
  double best_score() const;

 private:
  static constexpr size_t kAxes = 3;
  // Indices into the axes.
  using Place = std::array<size_t, kAxes>;

  Tuning TuningAt(const Place& place) const;
  // The place so many steps from `place` along an axis, but not beyond its end.
  Place Moved(Place place, size_t axis, ptrdiff_t steps) const;
  bool IsKnown(const Place& place) const { return samples_.count(place) > 0; }

  // The next place that has no score, or must be measured again.
  std::optional<Place> Wanted() const;
  // Repeats the walk from its start, by the first score of each place. Returns
  // the first place without a score.
  std::optional<Place> Walk() const;
  // The part of the walk along one axis, from `*here`. Moves `*here` along.
  std::optional<Place> WalkAlong(size_t axis, ptrdiff_t first_stride,
                                 Place* here) const;
  std::optional<Place> PlayOff() const;
  // The places that may be the best, by their first scores in descending order.
  std::vector<Place> Finalists() const;
  Place BestPlace() const;

  // The values, ascending, in this order: chunk bytes, fusion bytes, batches in
  // flight. Chunk bytes are first because wrong ones cost most, and hide the
  // effect of the others.
  std::array<std::vector<int64_t>, kAxes> axes_;
  Place start_{};
  const int64_t most_samples_;
  int64_t sample_count_ = 0;
  std::map<Place, std::vector<double>> samples_;  // scores, in order
  std::vector<Place> known_;                      // in order
  std::optional<Place> wanted_;
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_TUNING_SEARCH_H_
