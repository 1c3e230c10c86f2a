// SPDX-License-Identifier: Apache-2.0
// The rules of reducescatter: each rank gets its rows of all ranks' tensors,
// reduced.
#include "core/verbs/verb_rules.h"

namespace hvd {
const VerbRules& ReducescatterRules() {
  static const VerbRules* const rules = [] {
    auto* made = new VerbRules;
    made->reduces = true;
    // A rank sends each other one rows of its own, and nothing after that. So
    // they must all know before it sends the first.
    made->finite_check = FiniteCheck::kInput;
    made->properties = ReductionProperties();
    made->properties.insert(made->properties.begin(), ShapeProperty());
    made->fuses = ReduceAlike;
    made->scalar_lacks = "rows to scatter";
    // The rows of a rank that has joined would be lost.
    made->absent_rank_is_missed = [](const Signature&, int) { return true; };
    return made;
  }();
  return *rules;
}

}  // namespace hvd
