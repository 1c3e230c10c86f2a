// SPDX-License-Identifier: Apache-2.0
// Names of what TensorFlow has inlined, without what differs from rank to rank.
//
// "while/body/_7/w" is the op "w" of a loop's body. The 7 counts other loops
// and branches of the graph too. One rank may have more of them, such as a
// branch that only logs.
#ifndef HVD_ADAPTER_INLINED_NAMES_H_
#define HVD_ADAPTER_INLINED_NAMES_H_

#include <string>

#include "tensorflow/core/graph/graph.h"

namespace hvd {

// The name without these numbers: "while/body/w".
[[nodiscard]] std::string WithoutNumbers(const std::string& name);

// The same name, where no call of a function in it is stateful:
// "StatefulPartitionedCall_1/w" is "PartitionedCall_1/w". TensorFlow calls a
// function by either, and by the first one where the function also logs, which
// it may do on one rank.
[[nodiscard]] std::string WithoutState(const std::string& name);

// Takes the numbers out of the names of the graph's loops. A loop that stands
// in a branch or in another loop has some. TensorFlow tells iterations apart by
// these names (call_site.cc), and they have to be equal on all ranks.
void NameLoops(tensorflow::Graph* graph);

}  // namespace hvd

#endif  // HVD_ADAPTER_INLINED_NAMES_H_
