// SPDX-License-Identifier: Apache-2.0
// Defines the node of a bundle, and moves edges to it.
#include "adapter/bundle_nodes.h"

#include <utility>

#include "adapter/matched_names.h"
#include "tensorflow/core/framework/node_def_util.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

std::vector<const char*> WithReduction(std::vector<const char*> attributes) {
  for (const char* name : {"T", "process_set_id", "reduce_op",
                           "prescale_factor", "postscale_factor",
                           "exact_prescale", "exact_postscale", "wire_dtype"}) {
    attributes.push_back(name);
  }
  return attributes;
}

// The node's name is that of no other node.
tf::NodeDef Define(const BundledType& type,
                   const std::vector<tf::Node*>& bundle, std::string name) {
  std::vector<std::string> nodes, names, matched;
  for (const tf::Node* one : bundle) {
    std::string tensor_name;
    (void)tf::TryGetNodeAttr(one->attrs(), "tensor_name", &tensor_name);
    nodes.push_back(one->name());
    names.push_back(tensor_name.empty() ? one->name() : tensor_name);
    std::vector<std::string> of_node;
    (void)tf::TryGetNodeAttr(one->attrs(), kMatchedNames, &of_node);
    matched.push_back(of_node.size() == 1 ? of_node[0] : names.back());
  }
  tf::NodeDef def;
  def.set_name(std::move(name));
  def.set_op(type.bundle_op);
  def.set_device(bundle[0]->requested_device());
  for (const char* shared : type.shared) {
    (*def.mutable_attr())[shared] = *bundle[0]->attrs().Find(shared);
  }
  tf::AddNodeAttr("num_tensors", static_cast<int>(bundle.size()), &def);
  tf::AddNodeAttr("nodes", nodes, &def);
  tf::AddNodeAttr("tensor_names", names, &def);
  tf::AddNodeAttr(kMatchedNames, matched, &def);
  return def;
}

// Gives `to` the edges of a node that it replaces, the one at `place` of
// `count`.
void MoveEdges(tf::Graph* graph, tf::Node* from, tf::Node* to, int place,
               int count) {
  for (const tf::Edge* edge : from->in_edges()) {
    if (edge->IsControlEdge()) {
      graph->AddControlEdge(edge->src(), to);
    } else {
      graph->AddEdge(edge->src(), edge->src_output(), to,
                     edge->dst_input() * count + place);
    }
  }
  const std::vector<const tf::Edge*> out(from->out_edges().begin(),
                                         from->out_edges().end());
  for (const tf::Edge* edge : out) {
    tf::Node* const reader = edge->dst();
    const int output = edge->src_output(), input = edge->dst_input();
    if (edge->IsControlEdge()) {
      graph->AddControlEdge(to, reader);
    } else {
      graph->RemoveEdge(edge);
      graph->AddEdge(to, output * count + place, reader, input);
    }
  }
}

}  // namespace

const BundledType& BundledDense() {
  static const auto* const type = new BundledType{
      "HorovodAllreduce", "HorovodBundledAllreduce", WithReduction({})};
  return *type;
}

const BundledType& BundledSparse() {
  static const auto* const type =
      new BundledType{"HorovodSparseAllreduce", "HorovodBundledSparseAllreduce",
                      WithReduction({"Tindices"})};
  return *type;
}

std::vector<std::string> SharedBy(const BundledType& type,
                                  const tf::Node& node) {
  std::vector<std::string> shared = {node.assigned_device_name()};
  for (const char* name : type.shared) {
    shared.push_back(node.attrs().Find(name)->SerializeAsString());
  }
  return shared;
}

TfStatus ReplaceByBundle(const BundledType& type,
                         const std::vector<tf::Node*>& nodes,
                         tf::Graph* graph) {
  TfStatus status;
  tf::Node* const made = graph->AddNode(
      Define(type, nodes, graph->NewName("hvd_bundle")), &status);
  TF_RETURN_IF_ERROR(status);
  made->set_assigned_device_name(nodes[0]->assigned_device_name());
  const auto count = static_cast<int>(nodes.size());
  for (int i = 0; i < count; ++i) {
    tf::Node* const node = nodes[static_cast<size_t>(i)];
    MoveEdges(graph, node, made, i, count);
    graph->RemoveNode(node);
  }
  return absl::OkStatus();
}

}  // namespace hvd
