// SPDX-License-Identifier: Apache-2.0
// The tree of an Adasum: which ranks' vectors are combined when, and how.
//
// Neighbours in rank order are combined pair by pair, level by level. A vector
// without a neighbour passes up as it is. Every vector of the tree is a
// weighted sum of the ranks' own, so the tree is a weight for each rank.
#ifndef HVD_TRANSPORT_COLLECTIVES_ADASUM_TREE_H_
#define HVD_TRANSPORT_COLLECTIVES_ADASUM_TREE_H_

#include <vector>

#include "cpu/dot_products.h"

namespace hvd {

// Vector a is that of the ranks [begin, middle), and b of [middle, end).
struct AdasumPair {
  int begin;
  int middle;
  int end;
};

// 0 for one rank, 1 for 2, 2 for 3 and 4, and so on.
[[nodiscard]] int AdasumLevels(int ranks);
// Those of a level, in rank order. The first level is 0.
[[nodiscard]] std::vector<AdasumPair> AdasumPairs(int ranks, int level);

// Combines a pair: (1 - a.b / 2 a.a) a + (1 - a.b / 2 b.b) b. A zero vector
// leaves the other one as it is. A vector counts as zero if its ranks' vectors
// have cancelled each other, and what is left comes from rounding.
//
// `weights` and `lengths` are those of all ranks. A rank's length is that of
// its own vector. It is set when the rank is first in a pair.
void CombinePair(const AdasumPair& pair, const Dots& dots, double* weights,
                 double* lengths);

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_ADASUM_TREE_H_
