// SPDX-License-Identifier: Apache-2.0
// The pass that numbers ops of equal tensor_name, and what reads its numbers.
#include "adapter/matched_names.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <regex>
#include <set>
#include <utility>

#include "adapter/inlined_names.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/graph/graph.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

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
    if (one.empty()) one = WithoutNumbers(node.name());
  }
  return names;
}

using OrderedNodes = std::map<std::string, tf::Node*, decltype(&ComesBefore)>;
using NamesOfNodes = std::map<const tf::Node*, std::vector<std::string>>;

// The names of all nodes. Whether a function's call is stateful is left out,
// unless names of two calls would be equal without it.
NamesOfNodes NamesOfAll(const OrderedNodes& nodes) {
  NamesOfNodes all;
  std::set<std::string> distinct;
  for (const auto& [node_name, node] : nodes) {
    all[node] = NamesOf(*node);
    distinct.insert(all[node].begin(), all[node].end());
  }
  std::map<std::string, int> uses;
  for (const std::string& name : distinct) ++uses[WithoutState(name)];
  for (auto& [node, names] : all) {
    for (std::string& name : names) {
      std::string plain = WithoutState(name);
      if (uses[plain] == 1) name = std::move(plain);
    }
  }
  return all;
}

// Where the name of a node enters a branch of a tf.cond or a tf.switch_case.
// TensorFlow puts "then/_0/", "else/_1/" or "branch2/_3/" there.
struct BranchEntry {
  size_t begin = std::string::npos;  // npos: it enters none
  size_t end = 0;
};

BranchEntry FindBranch(const std::string& node_name, size_t from) {
  static const std::regex* const kEntry =
      new std::regex("(^|/)((then|else|branch[0-9]+)/_[0-9]+/)");
  std::smatch found;
  if (!std::regex_search(node_name.cbegin() + static_cast<int64_t>(from),
                         node_name.cend(), found, *kEntry)) {
    return {};
  }
  const size_t begin = from + static_cast<size_t>(found.position(2));
  return {begin, begin + static_cast<size_t>(found.length(2))};
}

// The id of a process set, and a name within it.
using SetAndName = std::pair<int64_t, std::string>;

// One name of a node.
struct Use {
  tf::Node* node = nullptr;
  SetAndName set_and_name;
  int number = 0;
};

// Numbers uses of one name from `number` on. Of a conditional's branches one
// runs, on each rank perhaps another. So all of them begin with one number.
// Returns the number after the last. `from`: where the nodes' names may differ.
int Number(const std::vector<Use*>& uses, size_t from, int number) {
  for (size_t i = 0; i < uses.size();) {
    const std::string& first = uses[i]->node->name();
    const BranchEntry entry = FindBranch(first, from);
    if (entry.begin == std::string::npos) {
      uses[i++]->number = number++;
      continue;
    }
    // By where the branch begins: "else/_1/" is "else".
    std::map<std::string, std::pair<size_t, std::vector<Use*>>> branches;
    for (; i < uses.size(); ++i) {
      const std::string& name = uses[i]->node->name();
      const BranchEntry other = FindBranch(name, from);
      if (other.begin != entry.begin ||
          name.compare(0, entry.begin, first, 0, entry.begin) != 0) {
        break;
      }
      auto& branch = branches[name.substr(
          other.begin, name.find('/', other.begin) - other.begin)];
      branch.first = other.end;
      branch.second.push_back(uses[i]);
    }
    int after = number;
    for (const auto& [which, branch] : branches) {
      after = std::max(after, Number(branch.second, branch.first, number));
    }
    number = after;
  }
  return number;
}

// The number behind `name` in `matched`. Without any it is 0.
int NumberOf(const std::string& name, const std::string& matched) {
  if (matched.size() <= name.size() + 1) return 0;
  return std::atoi(matched.c_str() + name.size() + 1);
}

// The name of a use that has a number.
std::string Numbered(const std::string& name, int number) {
  return number > 0 ? name + "@" + std::to_string(number) : name;
}

// The uses of a graph, and what their names must not be.
struct Uses {
  std::vector<Use> missing;  // of the same node one after another
  // The first number that no node has. Of those with lower ones some may have
  // been pruned.
  std::map<SetAndName, int> unused;
  std::set<SetAndName> given;    // by users, who may have written "w@1"
  std::set<SetAndName> matched;  // of nodes that have names
};

Uses FindUses(const OrderedNodes& nodes) {
  Uses found;
  const NamesOfNodes all = NamesOfAll(nodes);
  for (const auto& [node_name, node] : nodes) {
    int64_t set_id = 0;
    (void)tf::TryGetNodeAttr(node->attrs(), "process_set_id", &set_id);
    const std::vector<std::string>& names = all.at(node);
    std::vector<std::string> matched;
    (void)tf::TryGetNodeAttr(node->attrs(), kMatchedNames, &matched);
    for (size_t i = 0; i < names.size(); ++i) {
      const SetAndName given{set_id, names[i]};
      found.given.insert(given);
      if (matched.empty()) {
        found.missing.push_back({node, given, 0});
      } else {
        int& first = found.unused[given];
        first = std::max(first, NumberOf(names[i], matched[i]) + 1);
        found.matched.insert({set_id, matched[i]});
      }
    }
  }
  return found;
}

// The numbers, from `first` on, that make names of their own of `name`. As many
// as `count`.
std::vector<int> FreeNumbers(const Uses& uses, const SetAndName& name,
                             int first, size_t count) {
  std::vector<int> free;
  for (int number = first; free.size() < count; ++number) {
    const SetAndName numbered{name.first, Numbered(name.second, number)};
    const bool is_given = number > 0 && uses.given.count(numbered) > 0;
    if (!is_given && uses.matched.count(numbered) == 0) free.push_back(number);
  }
  return free;
}

// Gives the nodes that have none the names to match by.
void NameCalls(const OrderedNodes& nodes) {
  Uses uses = FindUses(nodes);
  std::map<SetAndName, std::vector<Use*>> groups;
  for (Use& use : uses.missing) groups[use.set_and_name].push_back(&use);
  for (const auto& [name, group] : groups) {
    if (group.size() > 1) (void)Number(group, 0, 0);
    const std::vector<int> free =
        FreeNumbers(uses, name, uses.unused[name], group.size());
    for (Use* use : group) {
      use->number = free[static_cast<size_t>(use->number)];
    }
  }
  std::map<tf::Node*, std::vector<std::string>> names;
  for (const Use& use : uses.missing) {
    names[use.node].push_back(Numbered(use.set_and_name.second, use.number));
  }
  for (const auto& [node, of_node] : names) {
    node->AddAttr(kMatchedNames, of_node);
  }
}

// Runs in each graph that is to be executed, between inlining and what merges
// equal nodes. The attribute differs from node to node. So TensorFlow merges no
// collectives: it would on a rank alone where a constant has another value
// there. In sessions functions are inlined later, so it runs a second time.
class NameMatchedCalls : public tf::GraphOptimizationPass {
 public:
  explicit NameMatchedCalls(bool is_first) : is_first_(is_first) {}

  TfStatus Run(const tf::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || *options.graph == nullptr) return {};
    OrderedNodes nodes(ComesBefore);
    for (tf::Node* node : (*options.graph)->op_nodes()) {
      if (node->type_string().rfind("Horovod", 0) != 0) continue;
      if (is_first_) node->ClearAttr(kMatchedNames);
      nodes[node->name()] = node;
    }
    if (!nodes.empty()) NameLoops(options.graph->get());
    NameCalls(nodes);
    return {};
  }

 private:
  const bool is_first_;
};

class NameInlinedCalls final : public NameMatchedCalls {
 public:
  NameInlinedCalls() : NameMatchedCalls(false) {}
};
class NameCallsOfGraph final : public NameMatchedCalls {
 public:
  NameCallsOfGraph() : NameMatchedCalls(true) {}
};

REGISTER_OPTIMIZATION(tf::OptimizationPassRegistry::POST_PLACEMENT, 0,
                      NameCallsOfGraph);
REGISTER_OPTIMIZATION(tf::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 0,
                      NameInlinedCalls);

}  // namespace

std::vector<std::string> MatchedNames(tf::OpKernelConstruction* ctx,
                                      std::vector<std::string> tensor_names) {
  std::vector<std::string> matched;
  if (tf::TryGetNodeAttr(ctx->def(), kMatchedNames, &matched) &&
      matched.size() == tensor_names.size()) {
    return matched;
  }
  for (std::string& name : tensor_names) {
    if (name.empty()) name = WithoutNumbers(ctx->def().name());
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
