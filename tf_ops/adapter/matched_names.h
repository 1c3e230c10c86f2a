// SPDX-License-Identifier: Apache-2.0
// The names that ranks match a kernel's calls by.
//
// Several ops of one graph may have the same tensor_name: a function with a
// collective that is called twice, or variables that share a name. They may run
// at the same time, in another order on each rank. So they need names of their
// own. A graph pass gives them these, after functions have been inlined. A
// function that is not inlined is a graph of its own.
#ifndef HVD_ADAPTER_MATCHED_NAMES_H_
#define HVD_ADAPTER_MATCHED_NAMES_H_

#include <string>
#include <vector>

#include "adapter/tf_compat.h"

namespace hvd {

// The attribute that the pass gives a node: a list of names. TensorFlow lets
// every op have an attribute that begins with an underscore.
inline constexpr char kMatchedNames[] = "_hvd_matched_names";

// The names by which ranks match a kernel's calls. `tensor_names` are those of
// its attributes; an empty one stands for the node's name (inlined_names.h).
// Where ops share a name, all but the first have a number behind it: "w",
// "w@1", "w@2", in the order of their nodes' names. Numbers that would make the
// name of another op are left out. The branches of a tf.cond begin with the
// same number: ranks may take different ones. An eager op has its own name.
[[nodiscard]] std::vector<std::string> MatchedNames(
    tensorflow::OpKernelConstruction* ctx,
    std::vector<std::string> tensor_names);

// Whether the first of two nodes' names comes first: by letters, and by numbers
// where both have one. So "call_2" comes before "call_10".
[[nodiscard]] bool ComesBefore(const std::string& a, const std::string& b);

}  // namespace hvd

#endif  // HVD_ADAPTER_MATCHED_NAMES_H_
