// SPDX-License-Identifier: Apache-2.0
// TuningSearch: what to measure next, and what has been found to be the best.
#ifndef HVD_CORE_TUNING_SEARCH_H_
#define HVD_CORE_TUNING_SEARCH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/tuning.h"

namespace hvd {

// Walks along one value after the other, in strides that begin long and end at
// a factor of two, to wherever it is better by more than the noise, until no
// neighbour is. Those that came out nearly as good as the best are then
// measured again in turn, so that a lucky sample does not win.
//
// Pure: the same scores lead the same way. Owner and thread: the Autotuner's.
class TuningSearch {
 public:
  // Begins at `start`, which need be no power of two and may lie outside of
  // the range. Pieces are of up to `most_piece_bytes`. At most `most_samples`
  // are asked for.
  TuningSearch(const Tuning& start, int64_t most_piece_bytes,
               int64_t most_samples);

  // What is to be measured; none when the search is over.
  std::optional<Tuning> Next() const;
  // What Next gave has this score: the more the better, above 0.
  void Report(double score);

  // The best so far and its score; the start before there is any.
  Tuning best() const;
  double best_score() const;

 private:
  static constexpr size_t kAxes = 3;
  // Indices into the axes.
  using Place = std::array<size_t, kAxes>;

  Tuning TuningAt(const Place& place) const;
  // From `place` along an axis, to its end at most.
  Place Moved(Place place, size_t axis, ptrdiff_t steps) const;
  bool IsKnown(const Place& place) const { return samples_.count(place) > 0; }

  // The next place that is not known or must be measured again.
  std::optional<Place> Wanted() const;
  // Takes the walk from its start, by the first score of each place, as far as
  // scores are known.
  std::optional<Place> Walk() const;
  // The part of it along one axis from `*here`, which moves with it.
  std::optional<Place> WalkAlong(size_t axis, ptrdiff_t first_stride,
                                 Place* here) const;
  std::optional<Place> PlayOff() const;
  // Those that may be the best, by their first scores in descending order.
  std::vector<Place> Finalists() const;
  Place BestPlace() const;

  // Values, ascending: piece bytes, which matter most where they are far off
  // and hide what the others do, fusion bytes, batches in flight.
  std::array<std::vector<int64_t>, kAxes> axes_;
  Place start_{};
  const int64_t most_samples_;
  int64_t sample_count_ = 0;
  std::map<Place, std::vector<double>> samples_;  // scores, in order
  std::vector<Place> known_;                      // in order
  std::optional<Place> wanted_;
};

}  // namespace hvd

#endif  // HVD_CORE_TUNING_SEARCH_H_
