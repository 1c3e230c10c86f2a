// SPDX-License-Identifier: Apache-2.0
// Collects for each node what can make it dead, and numbers what it finds.
#include "adapter/run_sets.h"

#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace hvd {
namespace {

namespace tf = ::tensorflow;

// What is dead in some runs: an output of all switches of a predicate, which is
// the output of a node, or a node itself.
using Cause = std::tuple<int, int, int>;

constexpr int kNoOutput = -2;  // a control edge has -1

Cause BranchOf(const tf::Edge& edge) {
  const tf::Edge* predicate = nullptr;
  if (!edge.src()->input_edge(1, &predicate).ok()) {
    return {edge.src()->id(), kNoOutput, edge.src_output()};
  }
  return {predicate->src()->id(), predicate->src_output(), edge.src_output()};
}

// A set with more causes is replaced by the node that has them.
constexpr size_t kMostCauses = 32;

// Sets of causes, each once.
class Sets {
 public:
  int Number(std::set<Cause> causes) {
    const auto [at, is_new] =
        numbers_.try_emplace(causes, static_cast<int>(sets_.size()));
    if (is_new) sets_.push_back(std::move(causes));
    return at->second;
  }
  const std::set<Cause>& of(int number) const {
    return sets_[static_cast<size_t>(number)];
  }

 private:
  std::map<std::set<Cause>, int> numbers_;
  std::vector<std::set<Cause>> sets_;
};

}  // namespace

RunSets::RunSets(const tf::Graph& graph, const std::vector<tf::Node*>& order)
    : numbers_(static_cast<size_t>(graph.num_node_ids()), 0) {
  Sets sets;
  sets.Number({});  // it has 0
  for (const tf::Node* node : order) {
    const Cause itself = {node->id(), kNoOutput, kNoOutput};
    int& number = numbers_[static_cast<size_t>(node->id())];
    if (node->IsControlTrigger()) continue;  // it always runs
    if (node->IsMerge()) {                   // one of its inputs is enough
      number = sets.Number({itself});
      continue;
    }
    std::set<Cause> causes;
    for (const tf::Edge* edge : node->in_edges()) {
      const std::set<Cause>& before = sets.of(NumberOf(*edge->src()));
      causes.insert(before.begin(), before.end());
      if (edge->src()->IsSwitch() && !edge->IsControlEdge()) {
        causes.insert(BranchOf(*edge));
      }
    }
    if (causes.size() > kMostCauses) causes = {itself};
    if (!causes.empty()) number = sets.Number(std::move(causes));
  }
}

}  // namespace hvd
