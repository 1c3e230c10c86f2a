// SPDX-License-Identifier: Apache-2.0
// The graph pass that makes one node of small or sparse allreduces.
//
// TensorFlow takes as long to start an asynchronous kernel as hvd_tf takes to
// reduce a small tensor. So those that can start together do so in one kernel.
// For the other ranks they remain calls of their own, whatever they bundle.
//
// A bundle waits for all its inputs, and what follows waits for all its calls.
// That must not make ranks wait for each other, even where a rank makes the
// same calls one by one, in another order. So no collective and nothing that
// may contain one comes before a bundled node or behind it. Nor does a loop
// come before it. All of a bundle run, or none. And all wait for the same
// inputs of data, locks and the like: what they wait for, the graph does not
// show.
// Neighbours in the backward pass go together, in bundles of a bounded size.
// How many rows a sparse allreduce will have is not known. So it goes together
// with those alone that may start when it may.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "adapter/bundle_nodes.h"
#include "adapter/global_runtime.h"
#include "adapter/matched_names.h"
#include "adapter/run_sets.h"
#include "adapter/tf_compat.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

// The bytes of the tensor, if its shape was known when the graph was made.
constexpr char kBytes[] = "_hvd_bytes";

// More in one bundle saves little, and waits longer.
constexpr int64_t kMostBundleBytes = 65536;

// What may be bundled.
struct Candidate {
  tf::Node* node = nullptr;
  bool is_sparse = false;
  int64_t bytes = 0;   // of a dense one
  uint64_t links = 0;  // the linked nodes before it: a bit for each
  int depth = 0;       // nodes on the longest way to it: when it may start
  int run_set = 0;     // see RunSets
};

// Whether it calls functions that may have collectives: those of its
// attributes, or the one of its type's name. What XLA compiles has none.
bool CallsFunctions(const tf::Node& node) {
  bool is_compiled = false;
  (void)tf::TryGetNodeAttr(node.attrs(), "_XlaMustCompile", &is_compiled);
  if (is_compiled) return false;
  return node.IsFunctionCall() ||
         std::any_of(node.attrs().begin(), node.attrs().end(),
                     [](const auto& attribute) {
                       return attribute.second.has_func() ||
                              attribute.second.list().func_size() > 0;
                     });
}

// Whether it may wait for peers.
bool MayMeet(const tf::Node& node) {
  const std::string& type = node.type_string();
  return type.rfind("Horovod", 0) == 0 ||
         type.find("PyFunc") != std::string::npos || CallsFunctions(node);
}

// Whether it waits for something that no edge shows, or lets others go on that
// wait so: for data, for a lock, for what a partial run is fed.
bool IsLinked(const tf::Node& node) {
  static constexpr const char* kLinked[] = {
      // Iterators; queues' Enqueue and Dequeue; Stage and Unstage.
      "GetNext", "ReaderRead", "queue", "tage", "Peek",
      // Datasets that are read without an iterator.
      "DatasetTo",
      // Of TensorFlow, not of this library.
      "Mutex", "Barrier", "Accumulator", "Collective", "Nccl", "Send", "Recv"};
  const std::string& type = node.type_string();
  return std::any_of(std::begin(kLinked), std::end(kLinked),
                     [&type](const char* part) {
                       return type.find(part) != std::string::npos;
                     });
}

bool IsOfLoop(const tf::Node& node) {
  return node.IsControlFlow() && !node.IsSwitch() && !node.IsMerge();
}

// Each node behind all that comes before it. Ways around loops are left out:
// with them the begin of a loop might stand behind what is in the loop.
std::vector<tf::Node*> InOrder(const tf::Graph& graph) {
  std::vector<tf::Node*> order;
  tf::GetReversePostOrder(graph, &order, {}, [](const tf::Edge& edge) {
    return !edge.src()->IsNextIteration();
  });
  return order;
}

// By id: whether a node that may meet, or is linked, comes behind. `order`: see
// InOrder. A way around a loop leads to what is behind the loop's begin anyhow.
std::vector<char> FindFollowed(const tf::Graph& graph,
                               const std::vector<tf::Node*>& order) {
  const auto ids = static_cast<size_t>(graph.num_node_ids());
  std::vector<char> is_followed(ids, 0);
  std::vector<char> leads(ids, 0);  // to such a node: it is one, or is followed
  for (auto node = order.rbegin(); node != order.rend(); ++node) {
    const auto id = static_cast<size_t>((*node)->id());
    for (const tf::Node* next : (*node)->out_nodes()) {
      is_followed[id] |= leads[static_cast<size_t>(next->id())];
    }
    leads[id] = is_followed[id] || MayMeet(**node) || IsLinked(**node);
  }
  return is_followed;
}

// The node by itself, if it is small enough or sparse.
std::optional<Candidate> CandidateOf(tf::Node* node, int64_t most_bytes) {
  Candidate candidate;
  candidate.node = node;
  if (node->type_string() == BundledDense().op) {
    if (tf::TryGetNodeAttr(node->attrs(), kBytes, &candidate.bytes) &&
        candidate.bytes <= most_bytes) {
      return candidate;
    }
  } else if (node->type_string() == BundledSparse().op) {
    int tables = 0;
    candidate.is_sparse = true;
    if (tf::TryGetNodeAttr(node->attrs(), "num_tensors", &tables) &&
        tables == 1) {
      return candidate;
    }
  }
  return std::nullopt;
}

// The allreduces that may be bundled.
std::vector<Candidate> FindCandidates(const tf::Graph& graph,
                                      int64_t most_bytes) {
  int count = 0;
  for (tf::Node* node : graph.op_nodes()) {
    if (CandidateOf(node, most_bytes).has_value()) ++count;
  }
  if (count < 2) return {};
  const std::vector<tf::Node*> order = InOrder(graph);
  const auto ids = static_cast<size_t>(graph.num_node_ids());
  const std::vector<char> is_followed = FindFollowed(graph, order);
  const RunSets run_sets(graph, order);
  std::vector<char> is_held(ids, 0);  // by what comes before
  std::vector<uint64_t> links(ids, 0);
  uint64_t next_link = 1;
  std::vector<int> depths(ids, 0);
  std::vector<Candidate> found;
  for (tf::Node* node : order) {
    const auto id = static_cast<size_t>(node->id());
    for (const tf::Edge* edge : node->in_edges()) {
      const auto from = static_cast<size_t>(edge->src()->id());
      is_held[id] |= is_held[from];
      links[id] |= links[from];
      depths[id] = std::max(depths[id], depths[from] + 1);
    }
    if (!is_held[id] && !is_followed[id]) {
      if (auto candidate = CandidateOf(node, most_bytes)) {
        candidate->links = links[id];
        candidate->depth = depths[id];
        candidate->run_set = run_sets.NumberOf(*node);
        found.push_back(*candidate);
      }
    }
    is_held[id] |= MayMeet(*node) || IsOfLoop(*node);
    if (!IsLinked(*node)) continue;
    links[id] |= next_link;
    is_held[id] |= next_link == 0;  // there are more than bits
    next_link <<= 1;
  }
  return found;
}

// What all of a bundle have.
std::vector<std::string> SharedBy(const Candidate& one) {
  const BundledType& type = one.is_sparse ? BundledSparse() : BundledDense();
  std::vector<std::string> shared = SharedBy(type, *one.node);
  shared.push_back(type.op);
  shared.push_back(std::to_string(one.links));
  shared.push_back(std::to_string(one.run_set));
  if (one.is_sparse) shared.push_back(std::to_string(one.depth));
  return shared;
}

// In the order in which they may start.
std::vector<std::vector<Candidate>> Bundles(std::vector<Candidate> found) {
  std::sort(found.begin(), found.end(),
            [](const Candidate& a, const Candidate& b) {
              if (a.depth != b.depth) return a.depth < b.depth;
              return ComesBefore(a.node->name(), b.node->name());
            });
  std::map<std::vector<std::string>, std::vector<std::vector<Candidate>>>
      by_shared;
  for (const Candidate& one : found) {
    auto& bundles = by_shared[SharedBy(one)];
    int64_t bytes = one.bytes;
    if (!bundles.empty()) {
      for (const Candidate& other : bundles.back()) bytes += other.bytes;
    }
    if (bundles.empty() || bytes > kMostBundleBytes) bundles.emplace_back();
    bundles.back().push_back(one);
  }
  std::vector<std::vector<Candidate>> all;
  for (auto& [shared, bundles] : by_shared) {
    for (auto& bundle : bundles) {
      if (bundle.size() > 1) all.push_back(std::move(bundle));
    }
  }
  return all;
}

// Runs after NameInlinedCalls, in each graph that is to be executed.
class BundleAllreduces final : public tf::GraphOptimizationPass {
 public:
  TfStatus Run(const tf::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || *options.graph == nullptr) return {};
    const std::shared_ptr<Runtime> runtime = GetRuntime();
    if (runtime == nullptr || runtime->topology().size == 1) return {};
    const int64_t most_bytes = runtime->options().bundle_bytes;
    if (most_bytes == 0) return {};
    tf::Graph* const graph = options.graph->get();
    for (const std::vector<Candidate>& bundle :
         Bundles(FindCandidates(*graph, most_bytes))) {
      std::vector<tf::Node*> nodes;
      for (const Candidate& one : bundle) nodes.push_back(one.node);
      TF_RETURN_IF_ERROR(ReplaceByBundle(
          bundle[0].is_sparse ? BundledSparse() : BundledDense(), nodes,
          graph));
    }
    return {};
  }
};

REGISTER_OPTIMIZATION(tf::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 1,
                      BundleAllreduces);

}  // namespace
}  // namespace hvd
