// SPDX-License-Identifier: Apache-2.0
// Pairs of ranges of ranks, and what combining one does to the weights.
#include "transport/collectives/adasum_tree.h"

#include <algorithm>
#include <cmath>

namespace hvd {
namespace {

// What remains of a sum is no shorter than this part of its summands, unless
// they have cancelled each other: 2^-40.
constexpr double kCancelled = 1.0 / (int64_t{1} << 40);

// The weight of the vector of ranks [begin, end) among the pair's two. `vv` is
// its dot product with itself, `ab` that with the other one.
double WeightOf(int begin, int end, double vv, double ab, const double* weights,
                double* lengths) {
  if (end - begin == 1) lengths[begin] = std::sqrt(vv);
  double summands = 0.0;
  for (int rank = begin; rank < end; ++rank) {
    summands += std::abs(weights[rank]) * lengths[rank];
  }
  // Without a length there is no direction that both might have in common.
  const bool is_zero = std::sqrt(vv) <= kCancelled * summands;
  return is_zero ? 1.0 : 1.0 - ab / (2.0 * vv);
}

}  // namespace

int AdasumLevels(int ranks) {
  int levels = 0;
  while ((1 << levels) < ranks) ++levels;
  return levels;
}

std::vector<AdasumPair> AdasumPairs(int ranks, int level) {
  const int step = 1 << level;
  std::vector<AdasumPair> pairs;
  for (int begin = 0; begin + step < ranks; begin += 2 * step) {
    pairs.push_back({begin, begin + step, std::min(begin + 2 * step, ranks)});
  }
  return pairs;
}

void CombinePair(const AdasumPair& pair, const Dots& dots, double* weights,
                 double* lengths) {
  const double a =
      WeightOf(pair.begin, pair.middle, dots.aa, dots.ab, weights, lengths);
  const double b =
      WeightOf(pair.middle, pair.end, dots.bb, dots.ab, weights, lengths);
  for (int rank = pair.begin; rank < pair.end; ++rank) {
    weights[rank] *= rank < pair.middle ? a : b;
  }
}

}  // namespace hvd
