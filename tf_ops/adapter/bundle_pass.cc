// SPDX-License-Identifier: Apache-2.0
// The graph pass that makes one node of small allreduces.
//
// TensorFlow takes as long to start an asynchronous kernel as hvd_tf takes to
// reduce a small tensor. So those that can start together do so in one kernel.
// For the other ranks they remain calls of their own, whatever they bundle.
//
// A bundle waits for all its inputs, and what follows waits for all its calls.
// That must not make ranks wait for each other, even where a rank makes the
// same calls one by one, in another order. So no collective and nothing that
// may contain one comes before a bundled node or behind it. Nor does control
// flow come before it: then all of a bundle run, or none. And all wait for the
// same inputs of data, locks and the like: what they wait for, the graph does
// not show.
// Neighbours in the backward pass go together, in bundles of a bounded size.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "adapter/global_runtime.h"
#include "adapter/matched_names.h"
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

// What the nodes of a bundle have in common, beside the device.
constexpr const char* kShared[] = {"T",
                                   "process_set_id",
                                   "reduce_op",
                                   "prescale_factor",
                                   "postscale_factor",
                                   "exact_prescale",
                                   "exact_postscale",
                                   "wire_dtype"};

struct Small {
  tf::Node* node = nullptr;
  int64_t bytes = 0;
  uint64_t links = 0;  // the linked nodes before it: a bit for each
  int depth = 0;       // nodes on the longest way to it: when it may start
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
      // Of TensorFlow, not of this library.
      "Mutex", "Barrier", "Accumulator", "Collective", "Nccl", "Send", "Recv"};
  const std::string& type = node.type_string();
  return std::any_of(std::begin(kLinked), std::end(kLinked),
                     [&type](const char* part) {
                       return type.find(part) != std::string::npos;
                     });
}

// By id: whether a node that may meet, or is linked, comes behind. `order`: see
// GetReversePostOrder. A way around a loop leads to what is behind the loop's
// begin anyhow.
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

// A node's bytes, if it is small enough to be bundled. -1: it is not.
int64_t BytesOf(const tf::Node& node, int64_t most_bytes) {
  int64_t bytes = -1;
  const bool is_small = node.type_string() == "HorovodAllreduce" &&
                        tf::TryGetNodeAttr(node.attrs(), kBytes, &bytes) &&
                        bytes <= most_bytes;
  return is_small ? bytes : -1;
}

// The small allreduces that may be bundled.
std::vector<Small> FindSmall(const tf::Graph& graph, int64_t most_bytes) {
  int small_count = 0;
  for (const tf::Node* node : graph.op_nodes()) {
    if (BytesOf(*node, most_bytes) >= 0) ++small_count;
  }
  if (small_count < 2) return {};
  std::vector<tf::Node*> order;
  tf::GetReversePostOrder(graph, &order);
  const auto ids = static_cast<size_t>(graph.num_node_ids());
  const std::vector<char> is_followed = FindFollowed(graph, order);
  std::vector<char> is_held(ids, 0);  // by what comes before
  std::vector<uint64_t> links(ids, 0);
  uint64_t next_link = 1;
  std::vector<int> depths(ids, 0);
  std::vector<Small> found;
  for (tf::Node* node : order) {
    const auto id = static_cast<size_t>(node->id());
    for (const tf::Edge* edge : node->in_edges()) {
      const auto from = static_cast<size_t>(edge->src()->id());
      is_held[id] |= is_held[from];
      links[id] |= links[from];
      depths[id] = std::max(depths[id], depths[from] + 1);
    }
    const bool is_free = !is_held[id] && !is_followed[id];
    const int64_t bytes = is_free ? BytesOf(*node, most_bytes) : -1;
    if (bytes >= 0) found.push_back({node, bytes, links[id], depths[id]});
    is_held[id] |= MayMeet(*node) || node->IsControlFlow();
    if (!IsLinked(*node)) continue;
    links[id] |= next_link;
    is_held[id] |= next_link == 0;  // there are more than bits
    next_link <<= 1;
  }
  return found;
}

// By what nodes of a bundle share, in the order in which they may start.
std::vector<std::vector<Small>> Bundles(std::vector<Small> found) {
  std::sort(found.begin(), found.end(), [](const Small& a, const Small& b) {
    if (a.depth != b.depth) return a.depth < b.depth;
    return ComesBefore(a.node->name(), b.node->name());
  });
  std::map<std::vector<std::string>, std::vector<std::vector<Small>>> by_shared;
  for (const Small& one : found) {
    std::vector<std::string> shared = {one.node->assigned_device_name(),
                                       std::to_string(one.links)};
    for (const char* name : kShared) {
      shared.push_back(one.node->attrs().Find(name)->SerializeAsString());
    }
    auto& bundles = by_shared[shared];
    int64_t bytes = one.bytes;
    if (!bundles.empty()) {
      for (const Small& other : bundles.back()) bytes += other.bytes;
    }
    if (bundles.empty() || bytes > kMostBundleBytes) bundles.emplace_back();
    bundles.back().push_back(one);
  }
  std::vector<std::vector<Small>> all;
  for (auto& [shared, bundles] : by_shared) {
    for (auto& bundle : bundles) {
      if (bundle.size() > 1) all.push_back(std::move(bundle));
    }
  }
  return all;
}

// The node's name is that of no other node.
tf::NodeDef Define(const std::vector<Small>& bundle, std::string name) {
  std::vector<std::string> nodes, names, matched;
  for (const Small& one : bundle) {
    std::string tensor_name;
    (void)tf::TryGetNodeAttr(one.node->attrs(), "tensor_name", &tensor_name);
    nodes.push_back(one.node->name());
    names.push_back(tensor_name.empty() ? one.node->name() : tensor_name);
    std::vector<std::string> of_node;
    (void)tf::TryGetNodeAttr(one.node->attrs(), kMatchedNames, &of_node);
    matched.push_back(of_node.size() == 1 ? of_node[0] : names.back());
  }
  tf::NodeDef def;
  def.set_name(std::move(name));
  def.set_op("HorovodBundledAllreduce");
  def.set_device(bundle[0].node->requested_device());
  for (const char* shared : kShared) {
    (*def.mutable_attr())[shared] = *bundle[0].node->attrs().Find(shared);
  }
  tf::AddNodeAttr("num_tensors", static_cast<int>(bundle.size()), &def);
  tf::AddNodeAttr("nodes", nodes, &def);
  tf::AddNodeAttr("tensor_names", names, &def);
  tf::AddNodeAttr(kMatchedNames, matched, &def);
  return def;
}

// Gives `to` the edges of a node that it replaces at this place.
void MoveEdges(tf::Graph* graph, tf::Node* from, tf::Node* to, int place) {
  for (const tf::Edge* edge : from->in_edges()) {
    if (edge->IsControlEdge()) {
      graph->AddControlEdge(edge->src(), to);
    } else {
      graph->AddEdge(edge->src(), edge->src_output(), to, place);
    }
  }
  const std::vector<const tf::Edge*> out(from->out_edges().begin(),
                                         from->out_edges().end());
  for (const tf::Edge* edge : out) {
    tf::Node* const reader = edge->dst();
    const int input = edge->dst_input();
    if (edge->IsControlEdge()) {
      graph->AddControlEdge(to, reader);
    } else {
      graph->RemoveEdge(edge);
      graph->AddEdge(to, place, reader, input);
    }
  }
}

TfStatus Replace(tf::Graph* graph, const std::vector<Small>& bundle) {
  TfStatus status;
  tf::Node* const made =
      graph->AddNode(Define(bundle, graph->NewName("hvd_bundle")), &status);
  TF_RETURN_IF_ERROR(status);
  made->set_assigned_device_name(bundle[0].node->assigned_device_name());
  for (size_t i = 0; i < bundle.size(); ++i) {
    MoveEdges(graph, bundle[i].node, made, static_cast<int>(i));
    graph->RemoveNode(bundle[i].node);
  }
  return absl::OkStatus();
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
    for (const std::vector<Small>& bundle :
         Bundles(FindSmall(*graph, most_bytes))) {
      TF_RETURN_IF_ERROR(Replace(graph, bundle));
    }
    return {};
  }
};

REGISTER_OPTIMIZATION(tf::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 1,
                      BundleAllreduces);

}  // namespace
}  // namespace hvd
