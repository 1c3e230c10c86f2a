// SPDX-License-Identifier: Apache-2.0
// Makes one node of a graph from several that it replaces.
#ifndef HVD_ADAPTER_BUNDLE_NODES_H_
#define HVD_ADAPTER_BUNDLE_NODES_H_

#include <string>
#include <vector>

#include "adapter/tf_compat.h"
#include "tensorflow/core/graph/graph.h"

namespace hvd {

// A type of nodes that are bundled. The bundle has the first inputs of all its
// nodes, then their second ones, and so on. The same holds for outputs.
struct BundledType {
  const char* op;
  const char* bundle_op;
  // The attributes that the nodes of a bundle have in common.
  std::vector<const char*> shared;
};

// That of dense tensors, and that of rows with ids.
[[nodiscard]] const BundledType& BundledDense();
[[nodiscard]] const BundledType& BundledSparse();

// What all nodes of a bundle have: as text, for each attribute and the device.
[[nodiscard]] std::vector<std::string> SharedBy(const BundledType& type,
                                                const tensorflow::Node& node);

// Puts a bundle in the place of at least two such nodes that share all that.
[[nodiscard]] TfStatus ReplaceByBundle(
    const BundledType& type, const std::vector<tensorflow::Node*>& nodes,
    tensorflow::Graph* graph);

}  // namespace hvd

#endif  // HVD_ADAPTER_BUNDLE_NODES_H_
