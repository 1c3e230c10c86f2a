// SPDX-License-Identifier: Apache-2.0
// RunSets: which nodes of a graph run in the same cases.
#ifndef HVD_ADAPTER_RUN_SETS_H_
#define HVD_ADAPTER_RUN_SETS_H_

#include <cstddef>
#include <vector>

#include "adapter/tf_compat.h"
#include "tensorflow/core/graph/graph.h"

namespace hvd {

// A node does not run if one of its inputs is dead: it comes from the branch of
// a conditional that was not taken. Loops are not followed: nodes in them and
// behind them have numbers that say nothing.
class RunSets {
 public:
  // `order`: each node behind all that comes before it, but in loops.
  RunSets(const tensorflow::Graph& graph,
          const std::vector<tensorflow::Node*>& order);

  // Nodes of equal number all run, or none does. 0: it runs always.
  int NumberOf(const tensorflow::Node& node) const {
    return numbers_[static_cast<size_t>(node.id())];
  }

 private:
  std::vector<int> numbers_;  // by node id
};

}  // namespace hvd

#endif  // HVD_ADAPTER_RUN_SETS_H_
