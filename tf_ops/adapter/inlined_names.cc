// SPDX-License-Identifier: Apache-2.0
// Finds what TensorFlow has put into names by what stands around it.
#include "adapter/inlined_names.h"

#include <map>
#include <regex>
#include <set>
#include <vector>

#include "adapter/tf_compat.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

constexpr char kFrameName[] = "frame_name";

}  // namespace

std::string WithoutNumbers(const std::string& name) {
  static const std::regex* const kNumber =
      new std::regex("(^|/)(body|cond|then|else|branch[0-9]+)/_[0-9]+(?=/)");
  if (name.find("/_") == std::string::npos) return name;
  return std::regex_replace(name, *kNumber, "$1$2");
}

std::string WithoutState(const std::string& name) {
  static const std::regex* const kCall =
      new std::regex("(^|/)Stateful(PartitionedCall(_[0-9]+)?/)");
  if (name.find("StatefulPartitionedCall") == std::string::npos) return name;
  return std::regex_replace(name, *kCall, "$1$2");
}

void NameLoops(tf::Graph* graph) {
  std::map<std::string, std::vector<tf::Node*>> loops;
  std::set<std::string> taken;
  for (tf::Node* node : graph->op_nodes()) {
    std::string name;
    if (!node->IsEnter() ||
        !tf::TryGetNodeAttr(node->attrs(), kFrameName, &name)) {
      continue;
    }
    loops[name].push_back(node);
    taken.insert(name);
  }
  for (const auto& [name, enters] : loops) {
    const std::string plain = WithoutNumbers(name);
    // Two loops of one name would be one loop to TensorFlow.
    if (!taken.insert(plain).second) continue;
    for (tf::Node* enter : enters) {
      enter->ClearAttr(kFrameName);
      enter->AddAttr(kFrameName, plain);
    }
  }
}

}  // namespace hvd
