// SPDX-License-Identifier: Apache-2.0
// The pass that numbers ops of equal tensor_name, and what reads its numbers.
#include "adapter/matched_names.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/graph/graph.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

// A list of names. TensorFlow lets every op have an attribute that begins with
// an underscore.
constexpr char kMatchedNames[] = "_hvd_matched_names";

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// The digits of `text` from `at` on, without leading zeros. `at` moves on.
std::string TakeNumber(const std::string& text, size_t* at) {
  const size_t begin = *at;
  while (*at < text.size() && IsDigit(text[*at])) ++*at;
  const std::string digits = text.substr(begin, *at - begin);
  return digits.substr(std::min(digits.find_first_not_of('0'), digits.size()));
}

// The tensor_name or tensor_names of the node. None: its calls have no names.
std::vector<std::string> NamesOf(const tf::Node& node) {
  std::vector<std::string> names;
  std::string name;
  if (tf::TryGetNodeAttr(node.attrs(), "tensor_name", &name)) {
    names = {std::move(name)};
  } else if (!tf::TryGetNodeAttr(node.attrs(), "tensor_names", &names)) {
    return {};
  }
  for (std::string& one : names) {
    if (one.empty()) one = node.name();
  }
  return names;
}

// Runs in each graph that is to be executed, between inlining and what merges
// equal nodes. The attribute differs from node to node. So TensorFlow merges no
// collectives: it would on a rank alone where a constant has another value
// there.
class NameMatchedCalls : public tf::GraphOptimizationPass {
 public:
  TfStatus Run(const tf::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || *options.graph == nullptr) return {};
    std::map<std::string, tf::Node*, decltype(&ComesBefore)> nodes(ComesBefore);
    for (tf::Node* node : (*options.graph)->op_nodes()) {
      if (node->type_string().rfind("Horovod", 0) == 0) {
        nodes[node->name()] = node;
      }
    }
    // By set and name: the ops so far.
    std::map<std::pair<int64_t, std::string>, int> counts;
    for (const auto& [node_name, node] : nodes) {
      int64_t set_id = 0;
      (void)tf::TryGetNodeAttr(node->attrs(), "process_set_id", &set_id);
      std::vector<std::string> names = NamesOf(*node);
      for (std::string& name : names) {
        const int before = counts[{set_id, name}]++;
        if (before > 0) name += "@" + std::to_string(before);
      }
      node->ClearAttr(kMatchedNames);
      if (!names.empty()) node->AddAttr(kMatchedNames, names);
    }
    return {};
  }
};

REGISTER_OPTIMIZATION(tf::OptimizationPassRegistry::POST_PLACEMENT, 0,
                      NameMatchedCalls);

}  // namespace

std::vector<std::string> MatchedNames(tf::OpKernelConstruction* ctx,
                                      std::vector<std::string> tensor_names) {
  std::vector<std::string> matched;
  if (tf::TryGetNodeAttr(ctx->def(), kMatchedNames, &matched) &&
      matched.size() == tensor_names.size()) {
    return matched;
  }
  for (std::string& name : tensor_names) {
    if (name.empty()) name = ctx->def().name();
  }
  return tensor_names;
}

bool ComesBefore(const std::string& a, const std::string& b) {
  size_t at_a = 0, at_b = 0;
  while (at_a < a.size() && at_b < b.size()) {
    if (IsDigit(a[at_a]) && IsDigit(b[at_b])) {
      const std::string of_a = TakeNumber(a, &at_a);
      const std::string of_b = TakeNumber(b, &at_b);
      if (of_a.size() != of_b.size()) return of_a.size() < of_b.size();
      if (of_a != of_b) return of_a < of_b;
    } else if (a[at_a] != b[at_b]) {
      return a[at_a] < b[at_b];
    } else {
      ++at_a;
      ++at_b;
    }
  }
  const bool ends_a = at_a == a.size(), ends_b = at_b == b.size();
  // "x01" and "x1" are two names.
  return ends_a && ends_b ? a < b : ends_a;
}

}  // namespace hvd
